"""StreamingDataset with budgets: what is in the batches, the same on any layout and after a resume."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from budgeted import BUDGETS, EVERY, SAMPLES, Budget, check_batches, numbers_of, open_budget, same
from pictures import entries, write
from reading import by_position
from torch.utils.data import DataLoader

from streaming import CostBudget, PixelBudget, StateMismatch, StreamingDataset, StreamingLoader
from streaming.image import decode_image

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes:UserWarning"),
    pytest.mark.usefixtures("forkserver"),
]
EACH_MODE = pytest.mark.parametrize("mode", ["random", "longest", "pack", "seconds", "tokens packed"])


def test_the_index_knows_what_images_decode_to(source: str) -> None:
    """Sizes in the index are those of the decoded images, of whatever colours, format and orientation, and so are the
    frames of sound.
    """
    catalog = open_budget(source, BUDGETS["pad"]).catalog
    tables = [catalog.columns(shard) for shard in range(len(catalog))]
    found = {name: np.concatenate([table[name] for table in tables]).tolist() for name in tables[0]}
    shapes = [tuple(decode_image(entry.image).shape) for entry in SAMPLES]
    assert list(zip(found["height"], found["width"], strict=True)) == [shape[1:] for shape in shapes]
    assert found["pixels"] == [shape[1] * shape[2] for shape in shapes]
    assert found["frames"] == [len(entry.sound) for entry in SAMPLES]
    assert found["tokens"] == [len(entry.tokens) for entry in SAMPLES]


@EVERY
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.usefixtures("few_bins")
def test_batches_hold_their_samples_and_their_budget(source: str, budget: Budget, shuffle: bool) -> None:
    """C3, C4: images of every kind and arrays come as they are alone, padded with zeros or one behind the other; each
    sample once, each batch within the budget, and exactly as many batches as `len` says.
    """
    dataset = open_budget(source, budget, shuffle=shuffle)
    for _ in range(2):
        batches = list(dataset)
        assert len(batches) == len(dataset) == dataset.plan.total
        assert sorted(numbers_of(batches)) == list(range(len(SAMPLES)))
        check_batches(dataset, batches)
    shapes = {tuple(batch["image"].shape) for batch in batches if "image" in batch}
    assert len(shapes) > 1 or isinstance(budget, CostBudget)


@EVERY
@pytest.mark.parametrize("tail", ["drop", "pad", "uneven"])
@pytest.mark.usefixtures("few_bins")
def test_ranks_give_the_one_sequence(source: str, budget: Budget, tail: str) -> None:
    """C1, C2, C11: laid out by position, the batches of any number of ranks and threads, random crops included, are
    those of one; `len` of them each.
    """
    one = list(open_budget(source, budget))
    full = open_budget(source, budget).plan.full
    for ranks in (2, 3):
        datasets = [open_budget(source, budget, rank=r, world_size=ranks, tail=tail, threads=r) for r in range(ranks)]
        got = [list(dataset) for dataset in datasets]
        assert [len(batches) for batches in got] == [len(dataset) for dataset in datasets]
        laid_out = by_position(got)
        if tail == "drop":
            assert len(laid_out) == full // ranks * ranks
        else:
            assert len(laid_out) == (len(one) if tail == "uneven" else -(-len(one) // ranks) * ranks)
        again = len(laid_out) - len(one)
        assert same(laid_out, [*one, *one[:again]] if again > 0 else one[: len(laid_out)])
        if tail == "pad":
            assert [bool(b["__repeat__"].any()) for b in laid_out] == [p >= len(one) for p in range(len(laid_out))]


@EVERY
@pytest.mark.usefixtures("few_bins")
def test_resume_from_every_position(source: str, budget: Budget) -> None:
    """C5, C11: from behind every batch, on as many ranks or others, the batches that are left come, pixel for pixel."""
    dataset = open_budget(source, budget)
    one = list(dataset)
    last = one[-1]["__state__"]
    assert (last["epoch"], last["position"]) == (1, 0)
    for position in range(1, len(one)):
        state = json.loads(json.dumps(one[position - 1]["__state__"]))
        assert (state["epoch"], state["position"]) == (0, position)
        ranks = 1 + position % 3
        rest = []
        for rank in range(ranks):
            resumed = open_budget(source, budget, rank=rank, world_size=ranks)
            resumed.load_state_dict(state)
            rest.append(list(resumed))
        assert same(by_position(rest), one[position:])


def test_states_of_other_budgets_are_refused(source: str) -> None:
    """The budget is part of the fingerprint, and so are its options and the predicate."""
    state = open_budget(source, BUDGETS["pad"]).state_dict()
    others: list[StreamingDataset] = [
        open_budget(source, PixelBudget(12_001, mode="pad")),
        open_budget(source, PixelBudget(12_000, mode="pad", longest=70)),
        open_budget(source, BUDGETS["pack"]),
        open_budget(source, BUDGETS["pad"], where="tokens > 1"),
        open_budget(source, BUDGETS["pad"], together=4),
    ]
    for other in others:
        with pytest.raises(StateMismatch, match=r"batch|where|together"):
            other.load_state_dict(state)
    open_budget(source, PixelBudget(max_pixels=12_000, mode="pad", oversize="alone")).load_state_dict(state)


def test_random_crops_are_drawn_for_each_sample_and_epoch(source: str) -> None:
    """C11: a crop is a function of seed, epoch and sample: another batching keeps it, another epoch or seed does not;
    each place along the longer side comes.
    """

    def crops(dataset: StreamingDataset) -> dict[int, torch.Tensor]:
        return {n: image for batch in dataset for n, image in zip(batch["cls"].tolist(), batch["image"], strict=True)}

    shape = PixelBudget(3000, buckets=[(16, 16)], upscale=True, crop="random")
    dataset = open_budget(source, shape)
    first, second = crops(dataset), crops(dataset)
    assert crops(open_budget(source, replace(shape, max_pixels=700), shuffle=False)).keys() == first.keys()
    for other, equal in (
        (crops(open_budget(source, replace(shape, max_pixels=700), shuffle=False)), True),
        (crops(open_budget(source, shape, where="tokens > 9")), True),
        (second, False),
        (crops(open_budget(source, shape, seed=5)), False),
        (crops(open_budget(source, replace(shape, crop="center"))), False),
    ):
        same = [torch.equal(image, first[n]) for n, image in other.items()]
        assert all(same) if equal else sum(same) < len(same) / 2


def test_random_crops_reach_both_ends(tmp_path: Path) -> None:
    """A crop that can lie in three places lies in each of them about equally often."""
    tall = entries(300, kinds=["palette"], sides=(18, 18))
    source = write(tmp_path / "data", tall, each=300)
    budget = PixelBudget(16 * 18 * 20, buckets=[(16, 18)], crop="random")
    found: Counter[int] = Counter()
    for batch in open_budget(source, budget):
        for n, image in zip(batch["cls"].tolist(), batch["image"], strict=True):
            whole = decode_image(tall[n].image)
            found[next(top for top in range(3) if torch.equal(image, whole[:, top : top + 16]))] += 1
    assert found.keys() == {0, 1, 2}
    assert min(found.values()) > 70


# Workers.


@EACH_MODE
def test_workers_change_nothing(source: str, mode: str) -> None:
    """C1, C5: torch's DataLoader with workers and StreamingLoader give the batches of one process, also from the middle
    on with the state of a batch.
    """
    budget = BUDGETS[mode]
    one = list(open_budget(source, budget, tail="drop"))
    for workers in (2, 3):
        loader = DataLoader(
            open_budget(source, budget, tail="drop"),
            batch_size=None,
            num_workers=workers,
            multiprocessing_context="fork",
        )
        assert len(loader) == len(one)
        given = list(loader)
        assert same(given, one)
    state = given[len(one) // 2]["__state__"]
    with StreamingLoader(open_budget(source, budget, tail="drop"), workers=2, start="forkserver") as streaming:
        streaming.load_state_dict(state)
        assert same(list(streaming), one[len(one) // 2 + 1 :])
        streaming.set_epoch(0)
        assert len(streaming) == len(one)
        assert same(list(streaming), one)


def test_workers_choose_the_same_samples(source: str) -> None:
    """A predicate and samples that are left out for their size hold in worker processes too."""
    budget = PixelBudget(2500, mode="pack", oversize="skip")
    wanted = [n for n, e in enumerate(SAMPLES) if len(e.tokens) > 9 and e.height * e.width <= 2500]
    one = list(open_budget(source, budget, where="tokens > 9"))
    assert sorted(numbers_of(one)) == wanted
    with StreamingLoader(open_budget(source, budget, where="tokens > 9"), workers=2, start="forkserver") as loader:
        assert same(list(loader), one)
