"""Image bytes to upright RGB pixels; Pillow is the reference."""

from __future__ import annotations

import io
import mmap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from photos import Pixels, jpeg, photo, saved, to_pixels
from PIL import Image, ImageOps

from shardwriter.probe import probe
from streaming import DecodeError
from streaming.framing import DRAWS, Crop, Framing, reduction
from streaming.image import cover, decode_image, shrink
from streaming.resize import frame

ORIENTATION = 0x0112


def _decoded(data: bytes) -> Pixels:
    tensor = decode_image(data)
    assert tensor.dtype == torch.uint8
    return to_pixels(tensor)


def _by_pillow(data: bytes) -> Pixels:
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("size", [(1, 1), (7, 9), (16, 16), (75, 100), (99, 41)])
def test_jpeg_equals_pillow(size: tuple[int, int], progressive: bool, subsampling: int) -> None:
    """JPEGs of any size, subsampling and scan order give the very pixels that Pillow gives."""
    data = saved(Image.fromarray(photo(*size)), "JPEG", quality=85, subsampling=subsampling, progressive=progressive)
    assert np.array_equal(_decoded(data), _by_pillow(data))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_exif_orientation(kind: str, orientation: int) -> None:
    """Pictures of each of the eight orientations are turned upright, whichever library decodes them, to the size that
    the index gives.
    """
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = saved(Image.fromarray(photo(16, 32)), kind, exif=exif)
    pixels = _decoded(data)
    assert pixels.shape == ((16, 32, 3) if orientation < 5 else (32, 16, 3))
    assert np.array_equal(pixels, _by_pillow(data))
    if kind != "TIFF":
        assert probe("jpg", data) == {"width": pixels.shape[1], "height": pixels.shape[0]}


def test_orientations_mean_what_exif_says() -> None:
    """Orientation 6, a camera turned to the right, moves the stored bottom left corner to the top left."""
    stored = np.zeros((16, 32, 3), np.uint8)
    stored[8:, :16] = (0, 0, 255)
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    pixels = _decoded(saved(Image.fromarray(stored), "PNG", exif=exif))
    assert pixels[0, 0].tolist() == [0, 0, 255]
    assert pixels[-1, 0].tolist() == pixels[0, -1].tolist() == [0, 0, 0]


@pytest.mark.parametrize("orientation", [0, 9, 300])
def test_orientations_that_do_not_exist(orientation: int) -> None:
    """An orientation outside of 1 to 8 counts as upright."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    for kind in ("JPEG", "PNG"):
        assert _decoded(saved(Image.fromarray(photo(16, 32)), kind, exif=exif)).shape == (16, 32, 3)


def test_cmyk_jpeg() -> None:
    """CMYK JPEGs, as print work stores them, come out in their colours and not as negatives."""
    for rgb in ((255, 0, 0), (0, 255, 255), (127, 127, 127)):
        image = Image.new("RGB", (32, 16), rgb).convert("CMYK")
        pixels = _decoded(saved(image, "JPEG", quality=95))
        assert pixels.shape == (16, 32, 3)
        assert np.abs(pixels.astype(int) - rgb).max() <= 12


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_grey(kind: str) -> None:
    """Grey is repeated in all three channels."""
    data = saved(Image.fromarray(photo(20, 30)[..., 2]), kind)
    pixels = _decoded(data)
    assert np.array_equal(pixels, np.repeat(np.asarray(Image.open(io.BytesIO(data)))[..., None], 3, axis=2))


def test_black_and_white() -> None:
    """Pictures of one bit are 0 and 255."""
    bits = Image.fromarray(photo(9, 9)[..., 2]).convert("1")
    pixels = _decoded(saved(bits, "PNG"))
    assert set(np.unique(pixels)) == {0, 255}
    assert np.array_equal(pixels[..., 0] > 0, np.asarray(bits))


def _palette() -> Image.Image:
    image = Image.new("P", (4, 2), 0)
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.paste(1, (2, 0, 4, 2))
    return image


def test_palettes() -> None:
    """The colours of a palette are looked up."""
    pixels = _decoded(saved(_palette(), "PNG"))
    assert pixels[0, 0].tolist() == [10, 20, 30]
    assert pixels[0, 3].tolist() == [200, 100, 50]


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_transparent_palettes(kind: str) -> None:
    """A transparent entry of a palette shows white, not the colour that it hides."""
    pixels = _decoded(saved(_palette(), kind, transparency=0))
    assert pixels[0, 0].tolist() == [255, 255, 255]
    assert pixels[0, 3].tolist() == [200, 100, 50]


def test_transparent_colour() -> None:
    """A transparent colour of a picture without palette shows white too."""
    image = Image.new("RGB", (4, 2), (9, 8, 7))
    image.putpixel((3, 0), (1, 2, 3))
    pixels = _decoded(saved(image, "PNG", transparency=(9, 8, 7)))
    assert pixels[0, 0].tolist() == [255, 255, 255]
    assert pixels[0, 3].tolist() == [1, 2, 3]


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_alpha_over_white(kind: str) -> None:
    """What is transparent in part is mixed with white."""
    image = Image.new("RGBA", (12, 4), (255, 0, 0, 255))
    image.paste((0, 0, 0, 0), (0, 0, 4, 4))
    image.paste((255, 0, 0, 128), (4, 0, 8, 4))
    pixels = _decoded(saved(image, kind, **({"lossless": True, "exact": True} if kind == "WEBP" else {})))
    for x, rgb in ((0, (255, 255, 255)), (5, (255, 127, 127)), (11, (255, 0, 0))):
        assert np.abs(pixels[0, x].astype(int) - rgb).max() <= 1


def test_grey_with_alpha() -> None:
    """Grey with an alpha channel is mixed with white, in three channels."""
    image = Image.new("LA", (4, 2), (80, 255))
    image.putpixel((0, 0), (80, 0))
    pixels = _decoded(saved(image, "PNG"))
    assert pixels[0, 0].tolist() == [255, 255, 255]
    assert pixels[0, 3].tolist() == [80, 80, 80]


def test_sixteen_bits() -> None:
    """Samples of 16 bits keep their upper 8 bits; they are not clipped."""
    wide = np.linspace(0, 65535, 4096).astype(np.uint16).reshape(64, 64)
    for kind in ("PNG", "TIFF"):
        assert np.array_equal(_decoded(saved(Image.fromarray(wide), kind))[..., 0], wide >> 8)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_content_decides_not_the_name(kind: str) -> None:
    """Bytes of another format under a .jpg name are decoded as what they are."""
    data = saved(Image.fromarray(photo(16, 32)), kind)
    assert np.array_equal(_decoded(data), _by_pillow(data))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_first_picture_of_several(kind: str) -> None:
    """Of animations and files with several pictures the first is taken."""
    red, blue = (Image.new("RGB", (16, 16), colour) for colour in ("red", "blue"))
    pixels = _decoded(saved(red, kind, save_all=True, append_images=[blue, blue]))
    assert pixels.shape == (16, 16, 3)
    assert np.abs(pixels.astype(int) - (255, 0, 0)).max() <= 2


def test_first_picture_of_a_phone() -> None:
    """Of an MPO file, as phones write them, the first picture is taken, turned as its orientation says."""
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    first, second = Image.fromarray(photo(16, 32)), Image.new("RGB", (64, 64), "blue")
    data = saved(first, "MPO", save_all=True, append_images=[second], exif=exif, quality=95)
    assert Image.open(io.BytesIO(data)).format == "MPO"
    assert np.array_equal(_decoded(data), _by_pillow(data))
    assert _decoded(data).shape == (32, 16, 3)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {"quality": 90}),
        ("JPEG", {"quality": 90, "progressive": True}),
        ("JPEG", {"quality": 90, "restart_marker_rows": 1}),
        ("PNG", {}),
        ("WEBP", {"quality": 80}),
        ("GIF", {}),
        ("BMP", {}),
        ("TIFF", {}),
    ],
)
def test_cut_images_are_never_half_pictures(kind: str, options: dict[str, Any]) -> None:
    """An image that is cut at any of many places is an error, or the whole picture where only what follows it is cut
    off; never a picture with a part missing.
    """
    data = saved(Image.fromarray(photo(40, 60)), kind, **options)
    whole = _decoded(data)
    errors = 0
    for cut in sorted({*range(0, len(data), max(1, len(data) // 150)), *range(len(data) - 40, len(data))}):
        try:
            pixels = _decoded(data[:cut])
        except DecodeError:
            errors += 1
        else:
            assert cut > len(data) - 40
            assert np.array_equal(pixels, whole)
    assert errors >= 100


def test_jpegs_without_their_last_two_bytes() -> None:
    """A JPEG that lacks its end marker is refused: nobody can tell how much else it lacks."""
    data = saved(Image.fromarray(photo(40, 60)), "JPEG")
    for cut in (1, 2, 3, 10):
        with pytest.raises(DecodeError, match="damaged"):
            decode_image(data[:-cut])


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_images_are_a_picture_or_a_decode_error(kind: str, data: st.DataObject) -> None:
    """Whatever bytes of a file are overwritten, the outcome is a uint8 picture or a DecodeError, and nothing else."""
    raw = bytearray(saved(Image.fromarray(photo(12, 20)), kind))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        patch = data.draw(st.binary(min_size=1, max_size=8))
        raw[at : at + len(patch)] = patch
    out = torch.zeros((3, 8, 8), dtype=torch.uint8)
    for framing in (None, Framing((8, 8))):
        try:
            tensor = decode_image(bytes(raw), framing, out if framing else None)
        except DecodeError:
            assert not out.any(), "half a picture was written"
        else:
            assert tensor.ndim == 3
            assert tensor.shape[0] == 3


def test_nothing_at_all() -> None:
    """An empty field is an error that says so."""
    with pytest.raises(DecodeError, match="0 bytes"):
        decode_image(b"")


@pytest.mark.parametrize("page", [b"<!DOCTYPE html><html>not found</html>", b"<svg/>", bytes(4096), b"\xff\xd8"])
def test_pages_are_no_images(page: bytes) -> None:
    """What a server answered in place of a picture is an error that shows how it starts, or says that it is damaged."""
    with pytest.raises(DecodeError, match=r"no image|damaged"):
        decode_image(page)


def test_bombs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file that unpacks to more pixels than Pillow allows is an error with a hint, before it is unpacked."""
    data = saved(Image.new("1", (2000, 2000)), "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(DecodeError, match=r"too large.*MAX_IMAGE_PIXELS"):
        decode_image(data)


def test_size_is_that_of_the_upright_picture() -> None:
    """`size` is (height, width) of the picture as it is seen, behind its turn."""
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    data = saved(Image.fromarray(photo(40, 80)), "JPEG", exif=exif)
    out = decode_image(data, Framing((64, 30)))
    assert out.shape == (3, 64, 30)
    assert torch.equal(out, cover(decode_image(data), 64, 30))


def test_decoding_frames_upright_pictures() -> None:
    """Crops and the longest side are those of the picture as it is seen; without either it keeps its size."""
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    data = saved(Image.fromarray(photo(40, 80)), "JPEG", exif=exif)
    whole = decode_image(data)
    assert torch.equal(decode_image(data, Framing()), whole)
    assert torch.equal(decode_image(data, Framing(longest=50)), shrink(whole, 50))
    assert decode_image(data, Framing(longest=50)).shape == (3, 50, 25)
    assert torch.equal(decode_image(data, Framing(longest=100)), whole)
    for at in ((0.0, 0.0), (0.9, 0.1)):
        assert torch.equal(decode_image(data, Framing((40, 40), at=at)), cover(whole, 40, 40, at=at))
    assert not torch.equal(decode_image(data, Framing((40, 40), at=(0, 0))), cover(whole, 40, 40))


def _slot(layout: str, height: int, width: int) -> torch.Tensor:
    """The middle image of a batch of three, filled with 7."""
    memory = {"planar": torch.contiguous_format, "channels-last": torch.channels_last}[layout]
    return torch.full((3, 3, height, width), 7, dtype=torch.uint8).contiguous(memory_format=memory)[1]


KINDS = {
    "jpeg": lambda: jpeg(60, 90),
    "large": lambda: jpeg(72, 110),
    "progressive": lambda: jpeg(60, 90, progressive=True),
    "grey": lambda: jpeg(60, 90, grey=True),
    "turned": lambda: jpeg(60, 90, orientation=6),
    "mirrored": lambda: jpeg(60, 90, orientation=4),
    "cmyk": lambda: saved(Image.fromarray(photo(60, 90)).convert("CMYK"), "JPEG"),
    "png": lambda: saved(Image.fromarray(photo(60, 90)), "PNG"),
    "palette": lambda: saved(Image.fromarray(photo(60, 90)).quantize(16), "PNG"),
}
RANDOM = Crop((0.3, 0.9), (0.5, 2.0), tuple(np.random.default_rng(3).random(DRAWS).tolist()))
FRAMINGS = [
    Framing((54, 56)),
    Framing((60, 90)),
    Framing((60, 50), at=(0.9, 0.1)),
    Framing((50, 90)),
    Framing((96, 80)),
    Framing((40, 52), crop=RANDOM),
    Framing((45, 45), flip=True),
    Framing((40, 52), crop=RANDOM, flip=True),
]


@pytest.mark.parametrize("layout", ["planar", "channels-last"])
@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_the_same_wherever_they_go(kind: str, layout: str) -> None:
    """A slot of a batch, of either layout, gets the very pixels that decoding the whole image and then framing it
    gives; its neighbours are not touched.
    """
    data = KINDS[kind]()
    whole = decode_image(data)
    for framing in FRAMINGS:
        assert framing.size is not None
        expected = frame(whole, framing)
        assert torch.equal(decode_image(data, framing), expected)
        slot = _slot(layout, *framing.size)
        out = decode_image(data, framing, slot)
        assert out is slot
        assert torch.equal(out, expected)
        assert slot._base is not None
        assert (slot._base[::2] == 7).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_crops_and_flips_are_of_the_upright_picture(orientation: int) -> None:
    """Whichever way a picture is stored, crop and flip act on it as it is seen, with and without scaling."""
    data = jpeg(48, 64, orientation=orientation)
    upright = decode_image(data)
    for framing in (
        Framing((30, 40), crop=RANDOM, flip=True),
        Framing(crop=RANDOM),
        Framing(flip=True),
        Framing((48, 48)),
    ):
        assert torch.equal(decode_image(data, framing), frame(upright, framing))


@settings(max_examples=60, deadline=None)
@given(*[st.integers(1, 60)] * 4, st.booleans(), st.booleans())
def test_any_size_into_any_slot(h: int, w: int, height: int, width: int, flip: bool, last: bool) -> None:
    """Images of any size fill slots of any size, with the pixels that come without a slot."""
    data = saved(Image.fromarray(photo(h, w)), "JPEG")
    framing = Framing((height, width), flip=flip)
    slot = _slot("channels-last" if last else "planar", height, width)
    assert torch.equal(decode_image(data, framing, slot), decode_image(data, framing))
    box = framing.box(h, w)
    if reduction(*box[2:], height, width) == 1:
        assert torch.equal(slot, frame(decode_image(data), framing))


def test_slots_of_other_shapes() -> None:
    """A slot that is not uint8 of the framing's size is refused, and so is one where the framing has no size."""
    data = jpeg(60, 90)
    with pytest.raises(ValueError, match=r"\[3, 20, 20\].*\(30, 30\)"):
        decode_image(data, Framing((30, 30)), _slot("planar", 20, 20))
    with pytest.raises(ValueError, match="float32"):
        decode_image(data, Framing((30, 30)), torch.zeros((3, 30, 30)))
    with pytest.raises(ValueError, match="None"):
        decode_image(data, None, _slot("planar", 60, 90))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("layout", ["planar", "channels-last"])
def test_cut_images_leave_slots_alone(kind: str, layout: str) -> None:
    """Nothing of an image that is not whole gets into a batch."""
    data = saved(Image.fromarray(photo(60, 90)), kind)
    slot = _slot(layout, 40, 40)
    for size in (0, 10, 300, len(data) // 2, len(data) - 40):
        with pytest.raises(DecodeError):
            decode_image(data[:size], Framing((40, 40)), slot)
    assert (slot == 7).all()


@pytest.mark.parametrize("kind", KINDS)
def test_images_in_mapped_files(kind: str, tmp_path: Path) -> None:
    """An image is read out of a mapped file, read-only, at any offset; the file can be unmapped when it is decoded."""
    data = KINDS[kind]()
    (tmp_path / "x.tar").write_bytes(b"?" * 13 + data + b"?" * 7)
    with (tmp_path / "x.tar").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with memoryview(mapped) as view, view[13 : 13 + len(data)] as part:
        whole, framed = decode_image(part), decode_image(part, Framing((40, 40)))
    mapped.close()
    assert torch.equal(whole, decode_image(data))
    assert torch.equal(framed, decode_image(data, Framing((40, 40))))


def test_threads_share_nothing() -> None:
    """Threads that decode at once, into slots of one batch, each give what one thread alone gives."""
    images = [jpeg(h, 90, orientation=1 + h % 8) for h in range(50, 74)]
    framings = [Framing((40, 40), at=(0.3, 0.7), flip=bool(i % 2)) for i in range(len(images))]
    alone = [decode_image(data, framing) for data, framing in zip(images, framings, strict=True)]
    batches = [torch.zeros((24, 3, 40, 40), dtype=torch.uint8) for _ in range(4)]
    batches[1::2] = [batch.contiguous(memory_format=torch.channels_last) for batch in batches[1::2]]
    start = threading.Barrier(4)

    def work(offset: int) -> None:
        start.wait()
        for batch in batches:
            for i in range(offset, len(images), 4):
                decode_image(images[i], framings[i], batch[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for batch in batches:
        assert torch.equal(batch, torch.stack(alone))


def test_what_is_decoded_owns_its_memory() -> None:
    """Images that were given keep their pixels when others are decoded."""
    framings = [None, Framing((40, 40)), Framing((60, 90)), Framing(crop=RANDOM), Framing(longest=50)]
    first = [decode_image(jpeg(60, 90), framing) for framing in framings]
    kept = [image.clone() for image in first]
    for framing in framings:
        decode_image(saved(Image.new("RGB", (90, 60), "red"), "JPEG"), framing)
    for image, copy in zip(first, kept, strict=True):
        assert torch.equal(image, copy)


@pytest.mark.parametrize("subsampling", [0, 2])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize(
    ("shape", "by"), [((240, 320), 2), ((180, 240), 2), ((120, 160), 4), ((90, 120), 4), ((60, 80), 8)]
)
def test_large_jpegs_are_decoded_smaller(shape: tuple[int, int], by: int, progressive: bool, subsampling: int) -> None:
    """Where at most half of a JPEG's size is wanted it is decoded at 1/2, 1/4 or 1/8; the mean difference to scaling
    the whole image is below 3 of 255 on a picture with noise.
    """
    data = jpeg(480, 640, subsampling=subsampling, progressive=progressive)
    small = simplejpeg.decode_jpeg(data, min_height=480 // by, min_width=640 // by, min_factor=by)
    assert small.shape == (480 // by, 640 // by, 3)
    expected = frame(torch.from_numpy(small).permute(2, 0, 1), Framing(shape))
    for framing in (Framing(shape), Framing(longest=shape[1])):
        image = decode_image(data, framing)
        assert torch.equal(image, expected)
        assert (image.int() - frame(decode_image(data), framing).int()).abs().float().mean() < 3


def test_what_is_wanted_decides_how_small() -> None:
    """A little more than half is decoded whole; a crop is decoded as small as it allows, whatever the image has."""
    data = jpeg(480, 640)
    whole = decode_image(data)
    for framing in (
        Framing((241, 241)),
        Framing(longest=321),
        Framing((100, 100), crop=Crop((0.1, 0.1), (1, 1), (0.5,) * DRAWS)),
    ):
        assert torch.equal(decode_image(data, framing), frame(whole, framing))
    half = Framing((100, 100), crop=Crop((0.15, 0.15), (1, 1), (0.5,) * DRAWS))
    assert not torch.equal(decode_image(data, half), frame(whole, half))


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
@pytest.mark.parametrize("size", [(401, 599), (400, 600), (333, 777), (777, 333)])
def test_smaller_decoding_keeps_the_place(size: tuple[int, int], orientation: int) -> None:
    """Of images of any size and orientation the part that is taken moves by less than a pixel of the result when they
    are decoded smaller.
    """
    y, x = np.mgrid[0 : size[0], 0 : size[1]]
    ramp = np.stack([255 * x / size[1], 255 * y / size[0], 0 * x], axis=-1)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = saved(Image.fromarray(ramp.astype(np.uint8)), "JPEG", quality=98, subsampling=0, exif=exif)
    whole = decode_image(data)
    for framing in (Framing((100, 100)), Framing((60, 90), at=(0.2, 0.9)), Framing((50, 50), crop=RANDOM, flip=True)):
        assert framing.size is not None
        step = 255 * max(framing.box(*whole.shape[1:])[2:]) / min(size) / min(framing.size)  # from pixel to pixel
        difference = decode_image(data, framing).int() - frame(whole, framing).int()
        assert difference.abs().float().mean(dim=(1, 2)).max() < step + 1


def test_tiny_pictures_are_not_decoded_smaller() -> None:
    """Pictures of less than a block are decoded whole: the rest of the block is no part of them."""
    for h, w in ((2, 2), (4, 6), (7, 7), (1, 5)):
        data = saved(Image.fromarray(np.full((h, w, 3), 200, np.uint8)), "JPEG", quality=95)
        assert torch.equal(decode_image(data, Framing((1, 1))), cover(decode_image(data), 1, 1))


def test_headers_that_promise_too_much() -> None:
    """A small JPEG that claims 65500 x 65500 pixels is an error, wherever it would go."""
    data = bytearray(jpeg(60, 90))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = (65500).to_bytes(2, "big") * 2
    for framing in (None, Framing((40, 40)), Framing((9000, 9000))):
        with pytest.raises(DecodeError):
            decode_image(bytes(data), framing)
