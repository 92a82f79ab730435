"""Image bytes to upright RGB pixels; Pillow is the reference."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageOps

from shardwriter.probe import probe
from streaming import DecodeError
from streaming.image import Framing, cover, decode_image, shrink
from streaming.plan.costs import capped

Pixels = NDArray[np.uint8]
ORIENTATION = 0x0112


def to_pixels(image: torch.Tensor) -> np.ndarray[Any, Any]:
    """An image tensor [3, height, width] as an array [height, width, 3]."""
    return np.ascontiguousarray(image.permute(1, 2, 0).numpy())


def _photo(height: int, width: int, seed: int = 0) -> Pixels:
    """A smooth picture with some noise: it keeps its look in a JPEG, and no two of its corners are alike."""
    y, x = np.mgrid[0:height, 0:width]
    base = np.stack([255 * x / width, 255 * y / height, 127 + 127 * np.sin(x / 9 + y / 7)], axis=-1)
    noise = np.random.default_rng(seed).normal(0, 6, base.shape)
    return np.clip(base + noise, 0, 255).astype(np.uint8)


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


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
    data = _saved(Image.fromarray(_photo(*size)), "JPEG", quality=85, subsampling=subsampling, progressive=progressive)
    assert np.array_equal(_decoded(data), _by_pillow(data))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_exif_orientation(kind: str, orientation: int) -> None:
    """Pictures of each of the eight orientations are turned upright, whichever library decodes them, to the size that
    the index gives.
    """
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = _saved(Image.fromarray(_photo(16, 32)), kind, exif=exif)
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
    pixels = _decoded(_saved(Image.fromarray(stored), "PNG", exif=exif))
    assert pixels[0, 0].tolist() == [0, 0, 255]
    assert pixels[-1, 0].tolist() == pixels[0, -1].tolist() == [0, 0, 0]


@pytest.mark.parametrize("orientation", [0, 9, 300])
def test_orientations_that_do_not_exist(orientation: int) -> None:
    """An orientation outside of 1 to 8 counts as upright."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    for kind in ("JPEG", "PNG"):
        assert _decoded(_saved(Image.fromarray(_photo(16, 32)), kind, exif=exif)).shape == (16, 32, 3)


def test_cmyk_jpeg() -> None:
    """CMYK JPEGs, as print work stores them, come out in their colours and not as negatives."""
    for rgb in ((255, 0, 0), (0, 255, 255), (127, 127, 127)):
        image = Image.new("RGB", (32, 16), rgb).convert("CMYK")
        pixels = _decoded(_saved(image, "JPEG", quality=95))
        assert pixels.shape == (16, 32, 3)
        assert np.abs(pixels.astype(int) - rgb).max() <= 12


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_grey(kind: str) -> None:
    """Grey is repeated in all three channels."""
    data = _saved(Image.fromarray(_photo(20, 30)[..., 2]), kind)
    pixels = _decoded(data)
    assert np.array_equal(pixels, np.repeat(np.asarray(Image.open(io.BytesIO(data)))[..., None], 3, axis=2))


def test_black_and_white() -> None:
    """Pictures of one bit are 0 and 255."""
    bits = Image.fromarray(_photo(9, 9)[..., 2]).convert("1")
    pixels = _decoded(_saved(bits, "PNG"))
    assert set(np.unique(pixels)) == {0, 255}
    assert np.array_equal(pixels[..., 0] > 0, np.asarray(bits))


def _palette() -> Image.Image:
    image = Image.new("P", (4, 2), 0)
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.paste(1, (2, 0, 4, 2))
    return image


def test_palettes() -> None:
    """The colours of a palette are looked up."""
    pixels = _decoded(_saved(_palette(), "PNG"))
    assert pixels[0, 0].tolist() == [10, 20, 30]
    assert pixels[0, 3].tolist() == [200, 100, 50]


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_transparent_palettes(kind: str) -> None:
    """A transparent entry of a palette shows white, not the colour that it hides."""
    pixels = _decoded(_saved(_palette(), kind, transparency=0))
    assert pixels[0, 0].tolist() == [255, 255, 255]
    assert pixels[0, 3].tolist() == [200, 100, 50]


def test_transparent_colour() -> None:
    """A transparent colour of a picture without palette shows white too."""
    image = Image.new("RGB", (4, 2), (9, 8, 7))
    image.putpixel((3, 0), (1, 2, 3))
    pixels = _decoded(_saved(image, "PNG", transparency=(9, 8, 7)))
    assert pixels[0, 0].tolist() == [255, 255, 255]
    assert pixels[0, 3].tolist() == [1, 2, 3]


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_alpha_over_white(kind: str) -> None:
    """What is transparent in part is mixed with white."""
    image = Image.new("RGBA", (12, 4), (255, 0, 0, 255))
    image.paste((0, 0, 0, 0), (0, 0, 4, 4))
    image.paste((255, 0, 0, 128), (4, 0, 8, 4))
    pixels = _decoded(_saved(image, kind, **({"lossless": True, "exact": True} if kind == "WEBP" else {})))
    for x, rgb in ((0, (255, 255, 255)), (5, (255, 127, 127)), (11, (255, 0, 0))):
        assert np.abs(pixels[0, x].astype(int) - rgb).max() <= 1


def test_grey_with_alpha() -> None:
    """Grey with an alpha channel is mixed with white, in three channels."""
    image = Image.new("LA", (4, 2), (80, 255))
    image.putpixel((0, 0), (80, 0))
    pixels = _decoded(_saved(image, "PNG"))
    assert pixels[0, 0].tolist() == [255, 255, 255]
    assert pixels[0, 3].tolist() == [80, 80, 80]


def test_sixteen_bits() -> None:
    """Samples of 16 bits keep their upper 8 bits; they are not clipped."""
    wide = np.linspace(0, 65535, 4096).astype(np.uint16).reshape(64, 64)
    for kind in ("PNG", "TIFF"):
        assert np.array_equal(_decoded(_saved(Image.fromarray(wide), kind))[..., 0], wide >> 8)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_content_decides_not_the_name(kind: str) -> None:
    """Bytes of another format under a .jpg name are decoded as what they are."""
    data = _saved(Image.fromarray(_photo(16, 32)), kind)
    assert np.array_equal(_decoded(data), _by_pillow(data))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_first_picture_of_several(kind: str) -> None:
    """Of animations and files with several pictures the first is taken."""
    red, blue = (Image.new("RGB", (16, 16), colour) for colour in ("red", "blue"))
    pixels = _decoded(_saved(red, kind, save_all=True, append_images=[blue, blue]))
    assert pixels.shape == (16, 16, 3)
    assert np.abs(pixels.astype(int) - (255, 0, 0)).max() <= 2


def test_first_picture_of_a_phone() -> None:
    """Of an MPO file, as phones write them, the first picture is taken, turned as its orientation says."""
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    first, second = Image.fromarray(_photo(16, 32)), Image.new("RGB", (64, 64), "blue")
    data = _saved(first, "MPO", save_all=True, append_images=[second], exif=exif, quality=95)
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
    data = _saved(Image.fromarray(_photo(40, 60)), kind, **options)
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
    data = _saved(Image.fromarray(_photo(40, 60)), "JPEG")
    for cut in (1, 2, 3, 10):
        with pytest.raises(DecodeError, match="damaged"):
            decode_image(data[:-cut])


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_images_are_a_picture_or_a_decode_error(kind: str, data: st.DataObject) -> None:
    """Whatever bytes of a file are overwritten, the outcome is a uint8 picture or a DecodeError, and nothing else."""
    raw = bytearray(_saved(Image.fromarray(_photo(12, 20)), kind))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        patch = data.draw(st.binary(min_size=1, max_size=8))
        raw[at : at + len(patch)] = patch
    try:
        tensor = decode_image(bytes(raw))
    except DecodeError:
        pass
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
    data = _saved(Image.new("1", (2000, 2000)), "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(DecodeError, match=r"too large.*MAX_IMAGE_PIXELS"):
        decode_image(data)


SIDES = st.integers(1, 90)


@settings(max_examples=150, deadline=None)
@given(SIDES, SIDES, SIDES, SIDES, st.integers(0, 99))
def test_cover_equals_pillow(h: int, w: int, height: int, width: int, seed: int) -> None:
    """Scaling to cover and cropping at the centre give, within rounding, what Pillow's resize of that box gives."""
    pixels = np.random.default_rng(seed).integers(0, 256, (h, w, 3), dtype=np.uint8)
    out = cover(torch.from_numpy(pixels).permute(2, 0, 1), height, width)
    assert out.dtype == torch.uint8
    assert out.shape == (3, height, width)
    scale = min(h / height, w / width)
    box_h, box_w = max(1, min(h, round(height * scale))), max(1, min(w, round(width * scale)))
    top, left = (h - box_h) // 2, (w - box_w) // 2
    crop = Image.fromarray(pixels).crop((left, top, left + box_w, top + box_h))
    expected = np.asarray(crop.resize((width, height), Image.Resampling.BILINEAR))
    assert np.abs(to_pixels(out).astype(int) - expected).max() <= 2


def test_cover_keeps_what_fits() -> None:
    """A picture that has the size already is not touched, and a larger one of the same shape is scaled as a whole."""
    pixels = torch.from_numpy(_photo(30, 40)).permute(2, 0, 1)
    assert torch.equal(cover(pixels, 30, 40), pixels)
    assert torch.equal(cover(pixels, 30, 20), pixels[:, :, 10:30])
    half = to_pixels(cover(pixels, 15, 20))
    expected = Image.fromarray(_photo(30, 40)).resize((20, 15), Image.Resampling.BILINEAR)
    assert np.abs(half.astype(int) - np.asarray(expected)).max() <= 2


def test_size_is_that_of_the_upright_picture() -> None:
    """`size` is (height, width) of the picture as it is seen, behind its turn."""
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    data = _saved(Image.fromarray(_photo(40, 80)), "JPEG", exif=exif)
    out = decode_image(data, Framing((32, 16)))
    assert out.shape == (3, 32, 16)
    assert torch.equal(out, cover(decode_image(data), 32, 16))


PLACES = st.floats(0, 1, exclude_max=True)


@settings(max_examples=60, deadline=None)
@given(SIDES, SIDES, SIDES, SIDES, PLACES, PLACES)
def test_a_crop_may_lie_anywhere(h: int, w: int, height: int, width: int, down: float, across: float) -> None:
    """Wherever it lies, a crop is what scaling that box gives; it is as large as at the centre and inside the picture,
    and moves along one side at most.
    """
    pixels = np.random.default_rng(0).integers(0, 256, (h, w, 3), dtype=np.uint8)
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    out = to_pixels(cover(image, height, width, at=(down, across)))
    assert out.shape == (height, width, 3)
    scale = min(h / height, w / width)
    box_h, box_w = max(1, min(h, round(height * scale))), max(1, min(w, round(width * scale)))
    assert box_h == h or box_w == w
    boxes = []
    for top in {max(0, min(h - box_h, round((h - box_h + 1) * down) + d)) for d in (-1, 0, 1)}:
        for left in {max(0, min(w - box_w, round((w - box_w + 1) * across) + d)) for d in (-1, 0, 1)}:
            crop = Image.fromarray(pixels).crop((left, top, left + box_w, top + box_h))
            boxes.append(np.asarray(crop.resize((width, height), Image.Resampling.BILINEAR)))
    assert min(np.abs(out.astype(int) - box).max() for box in boxes) <= 2


def test_each_place_of_a_crop_is_as_likely() -> None:
    """The places of a crop, from the first to the last, have equal parts of 0 to 1 each; 0.5 is the centre."""
    row = torch.arange(11, dtype=torch.uint8).repeat(3, 4, 1)
    parts = np.arange(800) / 800 + 1 / 1600
    lefts = [int(cover(row, 4, 4, at=(0.5, across))[0, 0, 0]) for across in parts]
    assert np.bincount(lefts).tolist() == [100] * 8
    tops = [int(cover(row.transpose(1, 2), 4, 4, at=(down, 0.5))[0, 0, 0]) for down in parts]
    assert tops == lefts
    assert cover(row, 4, 4, at=(0, 0))[0, 0].tolist() == [0, 1, 2, 3]
    assert cover(row, 4, 4, at=(1, 1))[0, 0].tolist() == [7, 8, 9, 10]
    assert torch.equal(cover(row, 4, 5), row[:, :, 3:8])


@settings(max_examples=60, deadline=None)
@given(SIDES, SIDES, st.integers(1, 100))
def test_pictures_shrink_to_what_plans_count(h: int, w: int, longest: int) -> None:
    """A picture above `longest` is scaled to the very size with which plans count it; others are not touched."""
    pixels = np.random.default_rng(0).integers(0, 256, (h, w, 3), dtype=np.uint8)
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    out = shrink(image, longest)
    height, width = (int(side[0]) for side in capped(np.array([h]), np.array([w]), longest))
    assert out.shape == (3, height, width)
    assert max(height, width) == min(longest, max(h, w))
    assert out.dtype == torch.uint8
    if max(h, w) <= longest:
        assert out is image
    expected = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))
    assert np.abs(to_pixels(out).astype(int) - expected).max() <= 2


def test_decoding_frames_upright_pictures() -> None:
    """Crops and the longest side are those of the picture as it is seen; without either it keeps its size."""
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    data = _saved(Image.fromarray(_photo(40, 80)), "JPEG", exif=exif)
    whole = decode_image(data)
    assert torch.equal(decode_image(data, Framing()), whole)
    assert torch.equal(decode_image(data, Framing(longest=20)), shrink(whole, 20))
    assert decode_image(data, Framing(longest=20)).shape == (3, 20, 10)
    assert torch.equal(decode_image(data, Framing(longest=100)), whole)
    for at in ((0.0, 0.0), (0.9, 0.1)):
        assert torch.equal(decode_image(data, Framing((40, 40), at=at)), cover(whole, 40, 40, at=at))
    assert not torch.equal(decode_image(data, Framing((40, 40), at=(0, 0))), cover(whole, 40, 40))
