"""Sizes and lengths from headers, compared with what decoding really gives."""

from __future__ import annotations

import io
import struct
import wave
import zlib
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from shardwriter.headers import jpeg_header, png_header, wav_layout
from shardwriter.kinds import AUDIO_FIELDS, IMAGE_FIELDS, kind_of
from shardwriter.probe import probe

FORMATS = ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "MPO", "JPEG2000", "TGA", "ICO"]


def encoded(size: tuple[int, int] = (48, 32), format: str = "JPEG", mode: str = "RGB", **options: Any) -> bytes:  # noqa: A002
    out = io.BytesIO()
    Image.effect_noise(size, 40).convert(mode).save(out, format, **options)
    return out.getvalue()


def exif(orientation: int, order: str = ">") -> bytes:
    """An EXIF block with two tags, in either byte order."""
    mark = {">": b"MM\0*", "<": b"II*\0"}[order]
    tags = struct.pack(order + "HHIHH", 0x0100, 3, 1, 7, 0) + struct.pack(order + "HHIHH", 0x0112, 3, 1, orientation, 0)
    return b"Exif\0\0" + mark + struct.pack(order + "IH", 8, 2) + tags + struct.pack(order + "I", 0)


def with_segment(jpeg: bytes, payload: bytes, marker: int = 0xE1) -> bytes:
    return jpeg[:2] + bytes((0xFF, marker)) + struct.pack(">H", len(payload) + 2) + payload + jpeg[2:]


def with_chunk(png: bytes, kind: bytes, payload: bytes, *, last: bool = False) -> bytes:
    chunk = struct.pack(">I", len(payload)) + kind + payload + struct.pack(">I", zlib.crc32(kind + payload))
    at = png.rindex(b"IEND") - 4 if last else 33
    return png[:at] + chunk + png[at:]


def decoded(data: bytes) -> dict[str, int]:
    with Image.open(io.BytesIO(data)) as image:
        width, height = ImageOps.exif_transpose(image).size
    return {"width": width, "height": height}


def wav(
    frames: int, *, data_size: int | None = None, riff: int | None = None, before: bytes = b"", **form: int
) -> bytes:
    code, channels, bits = form.get("code", 1), form.get("channels", 1), form.get("bits", 16)
    block = channels * bits // 8
    body = b"WAVEfmt " + struct.pack("<IHHIIHH", 16, code, channels, 16000, 16000 * block, block, bits) + before
    body += b"data" + struct.pack("<I", frames * block if data_size is None else data_size) + bytes(frames * block)
    return b"RIFF" + struct.pack("<I", len(body) if riff is None else riff) + body


@pytest.mark.parametrize("format", FORMATS)
def test_sizes_of_all_formats(format: str) -> None:  # noqa: A002
    """Width and height are those of the decoded image, in every format and under any image field's name."""
    data = encoded(format=format)
    assert probe("jpg", data) == probe("left.png", memoryview(data)) == decoded(data)
    assert decoded(data) == ({"width": 32, "height": 21} if format == "ICO" else {"width": 48, "height": 32})


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("orientation", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_orientations(orientation: int, order: str) -> None:
    """Sizes are those after turning the image upright, without decoding, in JPEG and in PNG, early or late."""
    block = exif(orientation, order)
    for data in (
        with_segment(encoded(), block),
        with_chunk(encoded(format="PNG"), b"eXIf", block[6:]),
        with_chunk(encoded(format="PNG"), b"eXIf", block[6:], last=True),
    ):
        assert probe("jpg", data) == decoded(data)
        assert jpeg_header(data) or png_header(data)


@pytest.mark.parametrize("format", ["WEBP", "TIFF", "MPO", "JPEG"])
def test_orientations_of_other_formats(format: str) -> None:  # noqa: A002
    """Formats that Pillow reads are turned as Pillow turns them."""
    tags = Image.Exif()
    tags[0x0112] = 6
    data = encoded(format=format, exif=tags)
    assert probe("img", data) == decoded(data) == {"width": 32, "height": 48}


@pytest.mark.parametrize("form", [b'tiff:Orientation="6"', b"<tiff:Orientation>6</tiff:Orientation>", b"tiff:Other"])
def test_orientation_in_xmp(form: bytes) -> None:
    """An orientation in XMP counts where EXIF has none, as in Pillow."""
    xmp = b"<x:xmpmeta>" + form + b"</x:xmpmeta>"
    for data in (
        with_segment(encoded(), b"http://ns.adobe.com/xap/1.0/\0" + xmp),
        with_segment(with_segment(encoded(), b"http://ns.adobe.com/xap/1.0/\0" + xmp), exif(3)),
        with_chunk(encoded(format="PNG"), b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp),
        with_chunk(encoded(format="PNG"), b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(xmp)),
    ):
        assert probe("jpg", data) == decoded(data)


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"icc_profile": bytes(200_000)}, {"optimize": True}])
def test_kinds_of_jpeg(mode: str, options: dict[str, Any]) -> None:
    """Baseline and progressive JPEGs of any colours take the fast way."""
    data = encoded(mode=mode, **options)
    header = jpeg_header(data)
    assert header is not None
    assert header.upright == (48, 32)
    assert probe("jpg", data) == decoded(data)


@pytest.mark.parametrize(
    "payload",
    [
        exif(6)[:20],
        b"Exif\0\0",
        b"Exif\0\0" + b"XX*\0" + bytes(20),
        exif(6)[:10] + struct.pack(">I", 1 << 30) + exif(6)[14:],
        exif(6).replace(struct.pack(">HHI", 0x0112, 3, 1), struct.pack(">HHI", 0x0112, 4, 1)),
        exif(6).replace(struct.pack(">HHI", 0x0112, 3, 1), struct.pack(">HHI", 0x0112, 3, 0)),
    ],
)
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data", "ignore:Metadata Warning", "ignore:Possibly corrupt EXIF")
def test_broken_exif_keeps_a_size(payload: bytes) -> None:
    """EXIF that can't be read leaves the image as stored, or as Pillow turns it; it never loses the size."""
    found = probe("jpg", with_segment(encoded(), payload))
    assert sorted(found.values()) == [32, 48]


def test_two_exif_blocks() -> None:
    """Where a JPEG is not plain, Pillow decides."""
    data = with_segment(with_segment(encoded(), exif(6)), exif(1))
    assert jpeg_header(data) is None
    assert probe("jpg", data) == decoded(data)


def test_fill_bytes_and_bare_markers() -> None:
    """Padding before a marker and markers without a length are stepped over."""
    data = encoded()
    assert probe("jpg", data[:2] + b"\xff\xff\xff" + data[2:]) == {"width": 48, "height": 32}
    header = jpeg_header(data[:2] + b"\xff\x01" + data[2:])
    assert header is not None
    assert header.upright == (48, 32)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"\xff\xd8",
        b"\xff\xd8" + bytes(100),
        b"<html>no</html>",
        b"\x89PNG\r\n\x1a\n",
        b"RIFF" + bytes(60),
    ],
)
@pytest.mark.parametrize("field", ["jpg", "wav"])
def test_unreadable_is_empty(field: str, data: bytes) -> None:
    """Bytes that are no image or no audio have no numbers, and raise nothing."""
    assert probe(field, data) == {}


def test_cut_images() -> None:
    """An image cut in its header has no size; one cut later has the size that its header says."""
    png = encoded(format="PNG")
    assert probe("jpg", encoded()[:100]) == probe("png", png[:20]) == {}
    assert probe("jpg", encoded()[:-50]) == probe("png", png[:-20]) == {"width": 48, "height": 32}


def test_other_fields_are_not_looked_at() -> None:
    """The last part of a field name decides whether its bytes are read."""
    data = encoded()
    assert probe("a.b.jpg", data) == {"width": 48, "height": 32}
    assert probe("jpg.gz", data) == probe("txt", data) == probe("jpg.txt", data) == {}
    assert kind_of("seg.png") == "image"
    assert IMAGE_FIELDS.isdisjoint(AUDIO_FIELDS)


def test_enormous_claims_are_no_bombs() -> None:
    """A few bytes that claim an enormous image cost nothing, whatever the format."""
    png = bytearray(encoded(format="PNG"))
    png[16:24] = struct.pack(">II", 1 << 30, 1 << 30)
    assert probe("png", png) == {"width": 1 << 30, "height": 1 << 30}
    bmp = bytearray(encoded(format="BMP"))
    bmp[18:26] = struct.pack("<ii", 1 << 20, 1 << 20)
    assert probe("bmp", bmp) == {}


@pytest.mark.parametrize("channels", [1, 2, 6])
@pytest.mark.parametrize(
    ("format", "subtype"),
    [("WAV", "PCM_16"), ("WAV", "PCM_24"), ("WAV", "PCM_U8"), ("WAV", "FLOAT"), ("WAV", "ULAW"), ("WAV", "IMA_ADPCM"),
     ("WAVEX", "PCM_16"), ("RF64", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("AIFF", "PCM_16"),
     ("AU", "PCM_16"), ("W64", "PCM_16"), ("MP3", "MPEG_LAYER_III")],
)  # fmt: skip
def test_lengths_of_all_formats(format: str, subtype: str, channels: int) -> None:  # noqa: A002
    """Frames and rate are those that soundfile decodes, for every format and number of channels it can write."""
    if channels > 2 and subtype in ("IMA_ADPCM", "MPEG_LAYER_III"):
        channels = 2
    out = io.BytesIO()
    soundfile.write(out, np.zeros((1600, channels), "f4"), 16000, subtype, format=format)
    read, rate = soundfile.read(io.BytesIO(out.getvalue()))
    assert probe("wav", out.getvalue()) == {"frames": len(read), "rate": rate}
    assert (wav_layout(out.getvalue()) is not None) == (format in ("WAV", "WAVEX") and subtype != "IMA_ADPCM")


ODD = b"LIST\x05\0\0\0INFO!\0"


@pytest.mark.parametrize(
    ("data", "frames"),
    [
        (wav(1600), 1600),
        (wav(1600, channels=6, bits=24), 1600),
        (wav(1600, before=ODD), 1600),
        (wav(1600, data_size=0xFFFFFFFF, riff=0xFFFFFFFF), 1600),
        (wav(1600, data_size=0, riff=0), 1600),
        (wav(1600, data_size=0, riff=36), 1600),
        (wav(1600, data_size=0x7FFF0000, riff=0x7FFF0024), 1600),
        (wav(1600) + ODD, 1600),
        (wav(0), 0),
        (wav(0, riff=36 + len(ODD)) + ODD, 0),
    ],
)
def test_wav_headers(data: bytes, frames: int) -> None:
    """Sizes that a pipe left open reach to the end of the file, and chunks around the data don't count."""
    assert probe("wav", data) == {"frames": frames, "rate": 16000}
    layout = wav_layout(data)
    assert layout is not None
    assert data[layout.offset - 8 : layout.offset - 4] == b"data"


def test_wav_of_pythons_wave_module() -> None:
    """Another writer's files read the same."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((2, 2, 44100, 0, "NONE", ""))
        file.writeframes(bytes(4 * 500))
    assert probe("audio", out.getvalue()) == {"frames": 500, "rate": 44100}


def test_cut_wav_is_not_plain() -> None:
    """A WAV that is shorter than its header says is not taken at its word."""
    assert wav_layout(wav(1600)[:-100]) is None


@given(st.sampled_from(["jpg", "wav"]), st.binary(max_size=200), st.data())
@pytest.mark.filterwarnings("ignore")
def test_any_bytes(field: str, junk: bytes, data: st.DataObject) -> None:
    """Whatever the bytes are, probing raises nothing and gives positive numbers or none."""
    start = data.draw(st.sampled_from([b"", *(encoded(format=f)[:300] for f in FORMATS), wav(20), wav(3, bits=8)]))
    raw = bytearray(start + junk)
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=5)):
        if at < len(raw):
            raw[at] = value
    numbers = probe(field, raw)
    assert numbers.keys() in ({"width", "height"}, {"frames", "rate"}, set())
    assert all(isinstance(n, int) and (n > 0 or name == "frames") for name, n in numbers.items())
