"""Random crops and flips, fused into decoding or on decoded samples."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from photos import jpeg

from streaming import PlanError, TransformError
from streaming.framing import Framing
from streaming.image import decode_image
from streaming.transforms import Composed, ImageStep, RandomFlip, RandomResizedCrop, check, drawn, leading

FLIP = RandomFlip()
CROP = RandomResizedCrop()


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def _image(height: int = 60, width: int = 90) -> torch.Tensor:
    pixels = np.random.default_rng(0).integers(0, 256, (3, height, width), dtype=np.uint8)
    return torch.from_numpy(pixels)


def label(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "cls": float(rng.random())}


def nothing(sample: dict[str, Any], rng: np.random.Generator) -> None:
    return None


def broken(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    raise KeyError("cls")


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("size", [(50, 50), (40, 70)])
def test_fused_and_by_hand(size: tuple[int, int], orientation: int, layout: torch.memory_format) -> None:
    """Steps that are part of decoding give the pixels that they give on the decoded sample, from the same numbers."""
    data = jpeg(60, 90, orientation=orientation)
    decoded = {"jpg": decode_image(data)}
    slot = torch.zeros((1, 3, *size), dtype=torch.uint8).contiguous(memory_format=layout)[0]
    for seed in range(20):
        steps, rest = leading([RandomResizedCrop(scale=(0.4, 1)), FLIP])
        assert rest is None
        fused = decode_image(data, drawn(steps, Framing(size), _rng(seed)), slot)
        rng = _rng(seed)
        by_hand = FLIP(RandomResizedCrop(size, scale=(0.4, 1))(decoded, rng), rng)
        assert torch.equal(fused, by_hand["jpg"])


def test_a_flip_before_the_crop() -> None:
    """A crop behind a flip is one of the flipped picture, fused too."""
    data = jpeg(60, 90)
    for seed in range(20):
        steps, _ = leading([RandomFlip(1.0), RandomResizedCrop(50, scale=(0.6, 1))])
        fused = decode_image(data, drawn(steps, None, _rng(seed)))
        rng, sample = _rng(seed), {"jpg": decode_image(data)}
        for step in steps:
            sample = step(sample, rng)
        assert (fused.int() - sample["jpg"].int()).abs().max() <= 1  # scaled and then flipped, or the other way round


def test_the_same_generator_gives_the_same() -> None:
    """What is drawn follows from the generator alone, and other generators give other framings."""
    steps, _ = leading([CROP, FLIP])
    framings = [drawn(steps, Framing((32, 32)), _rng(seed)) for seed in range(50)]
    assert framings == [drawn(steps, Framing((32, 32)), _rng(seed)) for seed in range(50)]
    assert len({framing.box(300, 400) for framing in framings}) == 50
    assert 10 < sum(framing.flip for framing in framings) < 40


def test_all_images_of_a_sample_get_the_same_draws() -> None:
    """Images of one sample are cropped and flipped alike; what is no image stays, and so does the sample given."""
    image = _image()
    other = torch.zeros((2, 60, 90), dtype=torch.uint8)
    sample = {"left.jpg": image, "right.jpg": image.float(), "mask": other, "txt": "a cat", "npy": np.zeros((3, 4, 4))}
    out = FLIP(CROP(sample, rng := _rng(4)), rng)
    assert (out["left.jpg"].float() - out["right.jpg"]).abs().max() <= 1.5
    assert out["right.jpg"].dtype == torch.float32
    assert out["mask"] is other
    assert out["npy"] is sample["npy"]
    assert list(out) == list(sample)
    assert sample["left.jpg"] is image
    assert torch.equal(image, _image())


def test_crops_without_a_size_keep_that_of_the_image() -> None:
    """On a decoded sample a crop without a size scales back to the size that the image has; one with a size to that."""
    sample = {"jpg": _image(), "png": _image(20, 30)}
    assert [image.shape for image in CROP(sample, _rng(0)).values()] == [(3, 60, 90), (3, 20, 30)]
    assert [image.shape for image in RandomResizedCrop((8, 9))(sample, _rng(0)).values()] == [(3, 8, 9)] * 2


def test_shapes_are_relative_to_the_result() -> None:
    """`ratio` is relative to the shape of the result, so that a long bucket is filled without distortion."""
    step = RandomResizedCrop((50, 100), scale=(0.01, 0.2), ratio=(1, 1))
    for seed in range(20):
        _, _, h, w = drawn([step], None, _rng(seed)).box(1000, 1000)
        assert abs(w - 2 * h) <= 2


@pytest.mark.parametrize("p", [0, 0.25, 1.0])
def test_flips_have_their_probability(p: float) -> None:
    """A share `p` of samples is flipped; a flip is left against right."""
    image, step = _image(), RandomFlip(p)
    flipped = 0
    for seed in range(400):
        out = step({"jpg": image}, _rng(seed))["jpg"]
        assert torch.equal(out, image) or torch.equal(out, torch.from_numpy(image.numpy()[:, :, ::-1].copy()))
        flipped += not torch.equal(out, image)
    assert abs(flipped - 400 * p) <= (50 if 0 < p < 1 else 0)


def test_two_flips() -> None:
    """A flip and another flip are none."""
    steps, _ = leading([RandomFlip(1), RandomFlip(1)])
    assert not drawn(steps, None, _rng(0)).flip


@pytest.mark.parametrize(
    ("given", "fused", "left"),
    [
        (None, (), None),
        ([], (), None),
        (label, (), label),
        ([label], (), label),
        (FLIP, (FLIP,), None),
        ((CROP, FLIP), (CROP, FLIP), None),
        ([CROP, FLIP, label], (CROP, FLIP), label),
        ([FLIP, CROP, label, FLIP], (FLIP, CROP), Composed((label, FLIP))),
        ([label, CROP, FLIP], (), Composed((label, CROP, FLIP))),
        ([CROP, FLIP, CROP, FLIP], (CROP, FLIP), Composed((CROP, FLIP))),
    ],
)
def test_leading_steps(given: Any, fused: tuple[ImageStep, ...], left: Any) -> None:
    """Steps at the start of the list are fused, up to a function or a second crop; the rest follows in order."""
    assert leading(given) == (fused, left)


@pytest.mark.parametrize("given", ["flip", 5, [FLIP, "x"], {"jpg": label}, [None]])
def test_what_is_no_transform(given: Any) -> None:
    """What can't be called is refused when the dataset is made."""
    with pytest.raises(PlanError, match="function of"):
        leading(given)


def test_composed_transforms_share_a_generator() -> None:
    """Functions run in order, with one generator; what one of them draws the next does not get again."""
    both = Composed((label, FLIP, label))
    rng = _rng(0)
    expected = [rng.random() for _ in range(3)]
    assert both({"jpg": _image()}, _rng(0))["cls"] == expected[2]


def test_composed_transforms_name_the_culprit() -> None:
    """An error says which of several functions raised, or gave no sample."""
    with pytest.raises(TransformError, match=r"broken\(\) raised KeyError"):
        Composed((label, broken))({}, _rng(0))
    with pytest.raises(TransformError, match=r"nothing\(\) returned NoneType"):
        Composed((nothing, label))({}, _rng(0))


def test_sizes_that_do_not_agree() -> None:
    """A crop of another size than the batch, or without any, is refused; one that agrees, or stands alone, is not."""
    check([CROP, FLIP], Framing((224, 224)))
    check([RandomResizedCrop(224), FLIP], Framing((224, 224)))
    check([RandomResizedCrop(224)], None)
    check([RandomResizedCrop(224)], Framing(longest=300))
    check([FLIP], None)
    check([], None)
    with pytest.raises(PlanError, match=r"\(192, 192\).*\(224, 224\)"):
        check([FLIP, RandomResizedCrop(192)], Framing((224, 224)))
    for framing in (None, Framing(longest=300)):
        with pytest.raises(PlanError, match="without a size"):
            check([CROP], framing)
        with pytest.raises(PlanError, match="without a size"):
            drawn([CROP], framing, _rng(0))


def test_what_is_drawn_keeps_the_batch() -> None:
    """Without a crop, place, size and longest side are those of the batch; a crop of its own size replaces them."""
    batch = Framing((30, 40), at=(0.1, 0.9))
    assert drawn([RandomFlip(1)], batch, _rng(0)) == Framing((30, 40), at=(0.1, 0.9), flip=True)
    assert drawn([RandomFlip(0)], Framing(longest=9), _rng(0)) == Framing(longest=9)
    assert drawn([], None, _rng(0)) == Framing()
    assert drawn([RandomResizedCrop(8)], Framing(longest=9), _rng(0)).shape(50, 50) == (8, 8)
    assert drawn([CROP], batch, _rng(0)).size == (30, 40)


@pytest.mark.parametrize(
    "arguments",
    [
        {"size": 0},
        {"size": (10,)},
        {"size": (10, 0)},
        {"size": (10.0, 10.0)},
        {"size": "224"},
        {"size": True},
        {"scale": (0, 1)},
        {"scale": (0.5, 1.5)},
        {"scale": (0.9, 0.1)},
        {"scale": 0.5},
        {"scale": (0.1, float("nan"))},
        {"ratio": (0, 1)},
        {"ratio": (2, 1)},
        {"ratio": (1, float("inf"))},
        {"ratio": ("a", "b")},
    ],
)
def test_crops_that_make_no_sense(arguments: dict[str, Any]) -> None:
    """Arguments of a crop are checked when it is made, and the error names the one."""
    with pytest.raises(PlanError, match=f"RandomResizedCrop\\({next(iter(arguments))}="):
        RandomResizedCrop(**arguments)


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan"), "0.5", None, True])
def test_probabilities_that_make_no_sense(p: Any) -> None:
    """The probability of a flip is checked when it is made."""
    with pytest.raises(PlanError, match="RandomFlip"):
        RandomFlip(p)


def test_steps_reach_other_processes() -> None:
    """Steps, what is left of a list and what was drawn can be pickled, and stay equal."""
    for thing in (
        RandomResizedCrop(32),
        RandomFlip(0.1),
        *leading([CROP, FLIP, label, FLIP]),
        drawn([RandomResizedCrop(8)], None, _rng(0)),
    ):
        assert pickle.loads(pickle.dumps(thing)) == thing
    assert RandomResizedCrop([10, 20]).size == (10, 20)
    assert RandomResizedCrop(10) == RandomResizedCrop((10, 10))
    assert repr(RandomFlip(0.5)) == "RandomFlip(p=0.5)"
