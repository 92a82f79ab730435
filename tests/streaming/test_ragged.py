"""Batches of values of unequal size: padded to the largest, or packed one behind the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming import BatchError
from streaming.ragged import packed, padded, views

SIZES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6)
LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=6)
both = pytest.mark.parametrize("batch_of", [padded, packed])


def images(sizes: list[tuple[int, int]], *, array: bool = False, dtype: Any = np.uint8) -> list[dict[str, Any]]:
    """Samples with an image of each (height, width), and a number."""
    rng = np.random.default_rng(0)
    pixels: list[Any] = [rng.integers(1, 100, (3, h, w)).astype(dtype) for h, w in sizes]
    return [
        {"__key__": f"k{i}", "jpg": p if array else torch.from_numpy(p), "cls": i, "txt": f"t{i}"}
        for i, p in enumerate(pixels)
    ]


def arrays(lengths: list[int], shape: Callable[[int], tuple[int, ...]]) -> list[dict[str, Any]]:
    """Samples with an array of each length."""
    rng = np.random.default_rng(0)
    return [{"__key__": f"k{i}", "x": rng.random(shape(n), dtype=np.float32) + 1} for i, n in enumerate(lengths)]


@given(SIZES, st.booleans())
@settings(max_examples=40)
def test_padded_images(sizes: list[tuple[int, int]], array: bool) -> None:
    """Each image lies at the upper left of its slot, as large as `sizes` says; all else is 0, other fields are
    collated.
    """
    samples = images(sizes, array=array)
    batch = padded(samples, images=True)
    assert list(batch) == ["__key__", "jpg", "jpg.sizes", "cls", "txt"]
    height, width = (max(side) for side in zip(*sizes, strict=True))
    assert batch["jpg"].shape == (len(sizes), 3, height, width)
    assert batch["jpg"].dtype == torch.uint8
    assert batch["jpg.sizes"].dtype == torch.int64
    assert batch["jpg.sizes"].tolist() == [list(size) for size in sizes]
    for slot, sample, (h, w) in zip(batch["jpg"], samples, sizes, strict=True):
        assert torch.equal(slot[:, :h, :w], torch.as_tensor(sample["jpg"]))
        assert slot.long().sum() == torch.as_tensor(sample["jpg"]).long().sum()
    assert batch["cls"].tolist() == list(range(len(sizes)))
    assert batch["txt"] == [f"t{i}" for i in range(len(sizes))]


@given(SIZES, st.booleans())
@settings(max_examples=40)
def test_packed_images(sizes: list[tuple[int, int]], array: bool) -> None:
    """Views of the one flat buffer are the images; nothing lies between them."""
    samples = images(sizes, array=array)
    batch = packed(samples, images=True)
    assert list(batch) == ["__key__", "jpg", "jpg.offsets", "jpg.sizes", "cls", "txt"]
    assert batch["jpg"].shape == (3 * sum(h * w for h, w in sizes),)
    assert batch["jpg.offsets"].dtype == batch["jpg.sizes"].dtype == torch.int64
    assert batch["jpg.offsets"].tolist() == np.cumsum([0, *(3 * h * w for h, w in sizes)]).tolist()
    found = views(batch, "jpg")
    for view, sample in zip(found, samples, strict=True):
        assert torch.equal(view, torch.as_tensor(sample["jpg"]))
        assert view.untyped_storage().data_ptr() == batch["jpg"].untyped_storage().data_ptr()


def test_images_that_lie_otherwise_in_memory() -> None:
    """Images whose channels lie last in memory, as decoding leaves them, are packed as [c, h, w] too."""
    pixels = [torch.arange(h * w * 3, dtype=torch.uint8).view(h, w, 3).permute(2, 0, 1) for h, w in ((4, 3), (2, 5))]
    samples = [{"__key__": str(i), "png": p} for i, p in enumerate(pixels)]
    assert all(map(torch.equal, views(packed(samples, images=True), "png"), pixels))
    assert torch.equal(padded(samples, images=True)["png"][1, :, :2, :5], pixels[1])


SHAPES: dict[str, tuple[Callable[[int], tuple[int, ...]], bool]] = {
    "tokens": (lambda n: (n,), False),
    "features": (lambda n: (n, 4), False),
    "waveform": (lambda n: (2, n), True),
    "mono": (lambda n: (n,), True),
}


@pytest.mark.parametrize("kind", SHAPES)
@given(LENGTHS, st.booleans())
@settings(max_examples=25)
def test_arrays_of_unequal_length(kind: str, lengths: list[int], tensors: bool) -> None:
    """Arrays are padded with zeros, or joined, along their first axis, or along their last for the fields of `last`;
    `lengths` and `offsets` count along it.
    """
    shape, at_last = SHAPES[kind]
    samples = arrays(lengths, shape)
    if tensors:
        samples = [sample | {"x": torch.from_numpy(sample["x"])} for sample in samples]
    values, axis, last = [torch.as_tensor(s["x"]) for s in samples], -1 if at_last else 0, {"x"} if at_last else set()
    batch = padded(samples, images=False, last=last)
    assert list(batch) == ["__key__", "x", "x.lengths"]
    assert batch["x.lengths"].dtype == torch.int64
    assert batch["x.lengths"].tolist() == lengths
    assert batch["x"].shape == (len(lengths), *shape(max(lengths)))
    for slot, value, n in zip(batch["x"], values, lengths, strict=True):
        assert torch.equal(slot.narrow(axis, 0, n), value)
        assert torch.count_nonzero(slot) == value.numel()
    batch = packed(samples, images=False, last=last)
    assert list(batch) == ["__key__", "x", "x.offsets"]
    assert batch["x.offsets"].dtype == torch.int64
    assert batch["x.offsets"].tolist() == np.cumsum([0, *lengths]).tolist()
    assert torch.equal(batch["x"], torch.cat(values, dim=axis))


@both
def test_what_is_not_ragged_is_collated(batch_of: Any) -> None:
    """With images only arrays of three dimensions are ragged, without only those of one and two: others must agree."""
    samples = [
        {"__key__": str(i), "jpg": torch.ones(3, 2 + i, 2), "box": np.arange(4), "n": np.int64(i)} for i in (0, 1)
    ]
    batch = batch_of(samples, images=True)
    assert batch["box"].tolist() == [[0, 1, 2, 3]] * 2
    assert batch["n"].tolist() == [0, 1]
    with pytest.raises(BatchError, match=r"uint8 \[3, 2, 2\] and uint8 \[3, 3, 2\]") as caught:
        batch_of(images([(2, 2), (3, 2)]), images=False)
    assert caught.value.field == "jpg"
    assert caught.value.key == "k1"


@both
def test_several_ragged_fields(batch_of: Any) -> None:
    """Each ragged field has sizes or lengths of its own."""
    samples = [{"__key__": str(i), "a": np.ones(i + 1), "b": np.ones((2, 3 - i))} for i in range(3)]
    batch = batch_of(samples, images=False, last=["b"])
    name = "lengths" if batch_of is padded else "offsets"
    assert batch[f"a.{name}"].tolist() == ([1, 2, 3] if batch_of is padded else [0, 1, 3, 6])
    assert batch[f"b.{name}"].tolist() == ([3, 2, 1] if batch_of is padded else [0, 3, 5, 6])


@pytest.mark.parametrize("last", [["left.wav"], {"wav": None, "mp3": None}])
def test_fields_of_one_kind(last: Any) -> None:
    """`last` names fields in whole or by their last part."""
    samples = [{"__key__": str(n), "left.wav": np.ones((2, n)), "wave": np.ones((n, 2))} for n in (5, 9)]
    batch = padded(samples, images=False, last=last)
    assert batch["left.wav"].shape == (2, 2, 9)
    assert batch["wave"].shape == (2, 9, 2)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (torch.ones(3, 2, 2), torch.ones(1, 2, 3)),
        (torch.ones(1, 2, 2), torch.ones(3, 2, 3)),
        (torch.ones(3, 2, 2), torch.ones(3, 2, 2, dtype=torch.uint8)),
        (torch.ones(3, 2, 2), torch.ones(2, 2)),
        (torch.ones(3, 2, 2), None),
        (torch.ones(3, 2, 2), "text"),
    ],
    ids=["grey", "colour", "type", "flat", "none", "text"],
)
@both
def test_images_that_differ_in_more_than_their_size(batch_of: Any, first: Any, second: Any) -> None:
    """Images of other channels or another type are an error that names the sample and shows both, not stretched."""
    with pytest.raises(BatchError, match=r"\[3, 2, 2\]|\[1, 2, 2\]") as caught:
        batch_of([{"__key__": "a", "jpg": first}, {"__key__": "b", "jpg": second}], images=True)
    assert caught.value.key == "b"
    assert caught.value.field == "jpg"


@pytest.mark.parametrize(
    ("first", "second", "last"),
    [
        (np.ones((5, 2)), np.ones((5, 3)), False),
        (np.ones((2, 5)), np.ones((3, 5)), True),
        (np.ones(5), np.ones(5, np.float32), False),
        (np.ones(5), np.ones((5, 1)), False),
    ],
)
@both
def test_arrays_that_differ_in_more_than_their_length(batch_of: Any, first: Any, second: Any, last: bool) -> None:
    """Arrays of other dimensions or another type are an error that names the sample."""
    with pytest.raises(BatchError, match="differ") as caught:
        batch_of([{"__key__": "a", "x": first}, {"__key__": "b", "x": second}], images=False, last=["x"] * last)
    assert caught.value.key == "b"
    assert caught.value.field == "x"


@both
@pytest.mark.parametrize("ragged", [True, False])
def test_fields_that_a_sample_lacks(batch_of: Any, ragged: bool) -> None:
    """A field that not all samples have is an error, whether the first lacks it or another."""
    more = {"jpg": torch.ones(3, 2, 2)} if ragged else {"cls": 1}
    for samples in ([{"__key__": "a"}, {"__key__": "b", **more}], [{"__key__": "a", **more}, {"__key__": "b"}]):
        with pytest.raises(BatchError, match="different fields"):
            batch_of(samples, images=True)
    with pytest.raises(BatchError, match="without samples"):
        batch_of([], images=True)


def test_a_batch_over_its_limit_is_an_error() -> None:
    """More pixels than the limit, padding included where there is some, are an error, but for an image alone."""
    two = images([(4, 2), (2, 4)])
    for batch_of, pixels in ((padded, 32), (packed, 16)):
        assert batch_of(two, images=True, limit=pixels)
        with pytest.raises(BatchError, match=f"2 images take {pixels} pixels together, {pixels - 1} are allowed"):
            batch_of(two, images=True, limit=pixels - 1)
        assert batch_of(two[:1], images=True, limit=1)
