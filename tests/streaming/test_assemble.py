"""The work of units: batches and single samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from shardwriter.errors import DecodeError
from streaming import BatchError, FixedBatch, Plan, TransformError
from streaming.assemble import Assembler
from streaming.choice import FieldChoice
from streaming.cut import RawSample
from streaming.image import Framing
from streaming.plan import SampleRefs
from streaming.readahead import run_here
from streaming.units import Unit


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
