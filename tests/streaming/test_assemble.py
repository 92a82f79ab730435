"""The work of units: batches and single samples."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import write_samples

from shardwriter.errors import DecodeError, ShardError
from streaming import BatchError, FixedBatch, Plan, TransformError
from streaming.assemble import Assembler
from streaming.buffers import Buffers
from streaming.catalog import open_catalog
from streaming.choice import FieldChoice
from streaming.cut import RawSample
from streaming.decode import Decoders
from streaming.fetch import Fetcher
from streaming.image import Framing
from streaming.plan import SampleGenerators, SampleRefs, Share
from streaming.readahead import run_here
from streaming.samples import SampleMaker
from streaming.units import Unit, framings, units


class Maker:
    """Gives the samples that it was made with, and an error for each None among them."""

    transform, plain = None, False

    def __init__(self, samples: list[dict[str, Any] | None], on_error: str) -> None:
        self.given, self.on_error = samples, on_error
        self.choice = FieldChoice(None)
        self.framings: list[Framing | None] = []
        self.fetcher = self

    def fetch(self, refs: SampleRefs) -> list[RawSample]:
        """The places of the samples."""
        return [RawSample(0, i, "a.tar", str(i), {"cls": b"1"}) for i in refs.indices.tolist()]

    cut = fetch

    def attempt(self, raw: RawSample, framing: Any = None, place: Any = None) -> Any:
        """One of the samples; an image where there is a place for it."""
        self.framings.append(framing)
        sample = self.given[raw.index % len(self.given)]
        if sample is None:
            return None, DecodeError("damaged", key=raw.key, shard="a.tar")
        if place is not None:
            sample = sample | {"jpg": place("jpg").fill_(raw.index)}
        return sample, None


def run(plan: Plan, samples: Any, *, repeats: list[bool], padded: bool = False, **options: Any) -> Any:
    """What an assembler makes of some samples."""
    maker: Any = Maker(samples, options.pop("on_error", "raise"))
    refs = SampleRefs(np.zeros(len(samples), np.int64), np.arange(len(samples)))
    unit = Unit(list(range(len(repeats))), repeats, refs, 0, options.pop("group", 0), padded)
    assembler = Assembler(plan, maker, options.pop("collate", None), options.pop("framings", [None]), 0, **options)
    done = run_here(assembler.job(unit))
    assert done.unit is unit
    return list(done.items), done.errors, maker


def urls(count: int) -> list[dict[str, Any]]:
    return [{"__key__": str(i), "__url__": "a.tar", "cls": i} for i in range(count)]


def test_a_batch_is_one_item() -> None:
    """A unit of a batched plan becomes one batch without URLs, of images framed as its group says, each of which has
    its place in the one tensor.
    """
    plan = Plan.make(np.array([20]), batch=FixedBatch(19), tail="drop")
    frames = [Framing((8, 8)), Framing((4, 16))]
    made: list[tuple[int, ...]] = []

    def allocate(shape: Any, dtype: torch.dtype) -> torch.Tensor:
        made.append(tuple(shape))
        return torch.empty(shape, dtype=dtype)

    for channels_last, shape in ((False, (19, 3, 4, 16)), (True, (19, 4, 16, 3))):
        options = {"framings": frames, "group": 1, "allocate": allocate, "channels_last": channels_last}
        [batch], errors, maker = run(plan, urls(19), repeats=[False], **options)
        assert batch.keys() == {"__key__", "cls", "jpg"}
        assert batch["cls"].tolist() == list(range(19))
        assert batch["jpg"].shape == (19, 3, 4, 16)
        assert batch["jpg"].float().mean((1, 2, 3)).tolist() == list(range(19))
        assert batch["jpg"].is_contiguous() == (not channels_last)
        assert maker.framings == [frames[1]] * 19
        assert errors == []
        assert made.pop() == shape
        assert not made


@pytest.mark.parametrize("again", [True, False])
def test_padded_epochs_flag_what_comes_again(again: bool) -> None:
    """With tail="pad" each batch says so for its samples, a single sample only in an epoch that repeats some."""
    plan = Plan.make(np.array([9]), batch=FixedBatch(3), tail="pad")
    [batch], _, _ = run(plan, urls(2), repeats=[again], padded=True)
    assert batch["__repeat__"].tolist() == [again, again]
    singles = Plan.make(np.array([9]), tail="pad")
    items, _, _ = run(singles, urls(2), repeats=[False, again], padded=True)
    assert [item["__repeat__"] for item in items] == [False, again]
    items, _, _ = run(singles, urls(2), repeats=[False, False])
    assert items == urls(2)


def test_skipped_samples() -> None:
    """A batch holds what is left and names what was skipped; a single sample that was leaves a gap; a batch of which
    nothing is left is an error that names the first.
    """
    plan, singles = (Plan.make(np.array([9]), batch=batch, tail="drop") for batch in (FixedBatch(3), None))
    first, _, last = urls(3)
    [batch], errors, _ = run(plan, [first, None, last], repeats=[False], on_error="skip")
    assert batch["cls"].tolist() == [0, 2]
    assert batch["__skipped__"] == ["1"]
    assert [e.key for e in errors] == ["1"]
    [batch], _, _ = run(plan, urls(3), repeats=[False], on_error="skip")
    assert batch["__skipped__"] == []
    items, errors, _ = run(singles, [None, last], repeats=[False, True], padded=True, on_error="skip")
    assert items == [None, last | {"__repeat__": True}]
    assert len(errors) == 1
    with pytest.raises(BatchError, match="every sample of a batch was skipped") as caught:
        run(plan, [None, None], repeats=[False], on_error="skip")
    assert caught.value.key == "0"
    assert caught.value.shard == "a.tar"


def test_a_collate_of_the_user() -> None:
    """What the user's collate gives is given as it is; what it raises is an error that keeps its text."""
    plan = Plan.make(np.array([9]), batch=FixedBatch(3), tail="pad")
    items, _, _ = run(plan, urls(3), repeats=[False], collate=lambda samples: tuple(s["cls"] for s in samples))
    assert items == [(0, 1, 2)]

    def wrong(samples: Any) -> Any:
        raise KeyError(f"{len(samples)} samples lack it")

    with pytest.raises(TransformError, match=r"wrong\(\) raised KeyError.*3 samples lack it"):
        run(plan, urls(3), repeats=[False], collate=wrong)


def _members(rows: list[dict[str, bytes]]) -> list[tuple[str, bytes]]:
    """The members of a shard of these samples."""
    return [(f"{i:03d}.{name}", data) for i, row in enumerate(rows) for name, data in row.items()]


def _assemblers(folder: Path, options: dict[str, Any], on_error: str = "raise") -> Iterator[tuple[Plan, Assembler]]:
    """What makes batches of three samples (or single samples) field by field, and what makes them one by one."""
    catalog = open_catalog(folder)
    batch = FixedBatch(3) if options.get("batched", True) else None
    plan = Plan.make(catalog.counts, batch=batch, tail="uneven")
    for light in (True, False):
        with Fetcher(catalog, FieldChoice(options.get("fields")).read) as fetcher:
            maker = SampleMaker(
                fetcher,
                FieldChoice(options.get("fields")),
                Decoders(options.get("decode", True)),
                None,
                SampleGenerators(0, 0),
                on_error,  # type: ignore[arg-type]
            )
            yield plan, Assembler(plan, maker, None, framings(plan), 0, light=light)


def _outcomes(folder: Path, options: dict[str, Any], on_error: str) -> list[Any]:
    """What comes of all units, in either way: items and errors, or the error that is raised."""
    outcomes = []
    for plan, assembler in _assemblers(folder, options, on_error):
        found: list[Any] = []
        try:
            for unit in units(plan, 0, Share(), plan.steps(), 4):
                done = run_here(assembler.job(unit))
                found.append(([_plain(item) for item in done.items], [_told(error) for error in done.errors]))
        except ShardError as error:
            found.append(_told(error))
        outcomes.append((found, assembler.counters.totals().get("bytes_read")))
    return outcomes


def _plain(item: Any) -> Any:
    if isinstance(item, torch.Tensor):
        return str(item.dtype), item.tolist()
    if isinstance(item, dict):
        return [(name, _plain(value)) for name, value in item.items()]
    return (type(item).__name__, item)


def _told(error: ShardError) -> Any:
    return type(error), error.key, error.field, str(error)


VALUES = {
    "txt": st.sampled_from([b"a cat", b"", "Grüße".encode(), b"\xff"]),
    "cls": st.sampled_from([b"1", b"-7", b"999999999999999999999999", b"x"]),
    "json": st.sampled_from([b"{}", b'{"a": [1]}', b"3", b"{"]),
    "bin": st.binary(max_size=4),
}
ROWS = st.lists(
    st.one_of(
        st.fixed_dictionaries(VALUES),
        st.fixed_dictionaries({"txt": VALUES["txt"], "bin": VALUES["bin"]}, optional={"cls": VALUES["cls"]}),
    ),
    min_size=1,
    max_size=7,
)
OPTIONS = st.fixed_dictionaries(
    {
        "batched": st.booleans(),
        "decode": st.sampled_from([True, True, False, {"txt": None}]),
        "fields": st.sampled_from([None, ["txt"], ["bin", "txt"], ["json;txt"], {"label": "cls"}, ["absent"]]),
    }
)


@settings(max_examples=80, deadline=None)
@given(ROWS, OPTIONS, st.sampled_from(["raise", "skip"]))
def test_field_by_field_is_as_sample_by_sample(rows: Any, options: dict[str, Any], on_error: str) -> None:
    """Whatever samples there are, with fields that some lack and values that can't be decoded, work done field by field
    gives the samples, batches and errors that work done sample by sample gives, and counts the same bytes.
    """
    with tempfile.TemporaryDirectory() as folder:
        write_samples(Path(folder), _members(rows))
        by_field, by_sample = _outcomes(Path(folder), options, on_error)
    assert by_field[0] == by_sample[0]
    if not any(isinstance(found, tuple) and isinstance(found[0], type) for found in by_sample[0]):
        assert by_field[1] == by_sample[1]


def test_arrays_field_by_field(tmp_path: Path) -> None:
    """Arrays are stacked; those that differ are an error that names the sample, as sample by sample."""
    for shapes in ([(2, 3)] * 3, [(2, 3), (2, 3), (3, 2)]):
        files = [io.BytesIO() for _ in shapes]
        for i, (file, shape) in enumerate(zip(files, shapes, strict=True)):
            np.save(file, np.full(shape, i, np.float32))
        folder = write_samples(tmp_path / str(shapes[-1]), _members([{"npy": file.getvalue()} for file in files]))
        by_field, by_sample = _outcomes(folder, {}, "raise")
        assert by_field[0] == by_sample[0]
        assert (by_field[0][-1][0] is BatchError) == (shapes[-1] == (3, 2))


class _Images:
    """Stands in for a maker whose transform does something to the image in its place."""

    transform, plain, on_error = None, False, "raise"

    def __init__(self, change: Any, skipped: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        self.choice, self.fetcher, self._change, self._skipped = FieldChoice(None), self, change, skipped
        self.on_error = "skip" if skipped else "raise"

    def fetch(self, refs: SampleRefs) -> list[RawSample]:
        return [RawSample(0, i, "a.tar", str(i), {}) for i in refs.indices.tolist()]

    def attempt(self, raw: RawSample, framing: Any = None, place: Any = None) -> Any:
        sample: dict[str, Any] = {"__key__": raw.key}
        for name, add in (("one", 0), ("two", 100)):
            sample[name] = place(name).fill_(raw.index + add)
        if raw.index in self._skipped:
            return None, DecodeError("damaged", key=raw.key)
        return self._change(sample), None


def _swapped(sample: dict[str, Any]) -> dict[str, Any]:
    return {"__key__": sample["__key__"], "one": sample["two"], "two": sample["one"]}


def _in_place(sample: dict[str, Any]) -> dict[str, Any]:
    sample["one"].add_(50)
    return sample


_KEPT = torch.full((3, 4, 4), 7, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("change", "one", "two"),
    [
        (lambda s: s, lambda i: i, lambda i: i + 100),
        (lambda s: s | {"one": s["one"].clone()}, lambda i: i, lambda i: i + 100),
        (lambda s: s | {"one": s["one"] + 1}, lambda i: i + 1, lambda i: i + 100),
        (lambda s: s | {"one": s["one"] + i_is_odd(s)}, lambda i: i + i % 2, lambda i: i + 100),
        (lambda s: s | {"one": s["one"].flip(-1)}, lambda i: i, lambda i: i + 100),
        (lambda s: s | {"one": _KEPT}, lambda i: 7, lambda i: i + 100),
        (lambda s: s | {"one": s["two"]}, lambda i: i + 100, lambda i: i + 100),
        (_swapped, lambda i: i + 100, lambda i: i),
        (_in_place, lambda i: i + 50, lambda i: i + 100),
    ],
)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("skipped", [set(), {0}, {3, 9}, {10}])
def test_images_that_a_transform_changes(
    change: Any, one: Any, two: Any, channels_last: bool, skipped: set[int]
) -> None:
    """Whatever becomes of an image behind its decoding (replaced, copied, shared, swapped with another, changed where
    it lies), and whichever samples are skipped, the batch has what the samples have.
    """
    plan = Plan.make(np.array([20]), batch=FixedBatch(11), tail="drop")
    maker: Any = _Images(change, skipped)
    unit = Unit([0], [False], SampleRefs(np.zeros(11, np.int64), np.arange(11)), 0, 0, False)
    buffers = Buffers()
    options = {"allocate": buffers.tensor, "channels_last": channels_last}
    assembler = Assembler(plan, maker, None, [Framing((4, 4))], 0, **options)  # type: ignore[arg-type]
    done = run_here(assembler.job(unit))
    [batch] = done.items
    left = [i for i in range(11) if i not in skipped]
    assert batch["__key__"] == [str(i) for i in left]
    for name, wanted in (("one", one), ("two", two)):
        assert batch[name].shape == (len(left), 3, 4, 4)
        assert batch[name].flatten(1).float().mean(1).tolist() == [wanted(i) for i in left]
        assert batch[name].flatten(1).float().std(1).max() == 0
    assert [error.key for error in done.errors] == [str(i) for i in sorted(skipped)]


def i_is_odd(sample: dict[str, Any]) -> int:
    """1 for each second sample, so that some images are replaced by their like and others are not."""
    return int(sample["__key__"]) % 2


def test_images_stay_where_they_were_decoded() -> None:
    """Where nothing becomes of them, images are not copied: the batch is the tensor that they were decoded into."""
    plan = Plan.make(np.array([20]), batch=FixedBatch(5), tail="drop")
    made: list[torch.Tensor] = []

    def allocate(shape: Any, dtype: torch.dtype) -> torch.Tensor:
        made.append(torch.empty(shape, dtype=dtype))
        return made[-1]

    unit = Unit([0], [False], SampleRefs(np.zeros(5, np.int64), np.arange(5)), 0, 0, False)
    maker: Any = _Images(lambda sample: sample)
    [batch] = run_here(Assembler(plan, maker, None, [Framing((4, 4))], 0, allocate).job(unit)).items
    assert [batch["one"].data_ptr(), batch["two"].data_ptr()] == [tensor.data_ptr() for tensor in made]
