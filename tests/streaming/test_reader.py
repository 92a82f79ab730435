"""How a dataset is read: recipes, and readers that run them."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from photos import jpeg
from reading import draw, flat, planned, write_samples

from streaming import FixedBatch, StreamingDataset
from streaming.assemble import Done
from streaming.buffers import Buffers
from streaming.place import Place, cores
from streaming.reader import LIGHT_RUN, MAX_THREADS, RUN, Over, Reader, Recipe
from streaming.stats import Counters
from streaming.transforms import RandomFlip


def _open(source: str | Path, **options: Any) -> StreamingDataset:
    return StreamingDataset(source, **{"batch": FixedBatch(2), "shuffle": True, "seed": 5, **options})


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four photos with a caption each."""
    data = jpeg(20, 30)
    members = [part for i in range(4) for part in ((f"{i}.jpg", data), (f"{i}.txt", b"a photo"))]
    return write_samples(tmp_path_factory.mktemp("images") / "data", members)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples whose index knows no sizes, with fields that take work nevertheless if decoders say so."""
    return write_samples(tmp_path_factory.mktemp("bare") / "data", [("0.txt", b"x"), ("1.txt", b"y")])


@pytest.mark.parametrize(
    ("options", "light"),
    [
        ({}, False),
        ({"decode": False}, True),
        ({"decode": "views"}, True),
        ({"fields": ["txt"]}, True),
        ({"fields": {"image": "png;jpg"}}, False),
        ({"decode": {"txt": len}}, False),
        ({"decode": {"jpg": None}}, False),
        ({"decode": {"jpg": None}, "fields": ["jpg", "txt"]}, True),
        ({"decode": False, "transform": draw}, False),
    ],
)
def test_what_takes_little_work(images: Path, options: dict[str, Any], light: bool) -> None:
    """Bytes, text and numbers are light; images, functions of the user's, and what is not known are not."""
    assert _open(images, **options).recipe.light == light


def test_fields_that_only_sidecars_name(bare: Path) -> None:
    """A dataset without images and sound is light as it stands."""
    assert _open(bare).recipe.light
    assert not _open(bare, decode={"txt": len}).recipe.light


def test_recipes_can_be_sent(small: str) -> None:
    """A recipe that was pickled reads the same, and has the same fingerprint, whatever was worked out before."""
    recipe = _open(small, transform=[RandomFlip(), draw]).recipe
    fingerprint, light = recipe.fingerprint, recipe.light
    copy: Recipe = pickle.loads(pickle.dumps(recipe))
    assert (copy.fingerprint, copy.light) == (fingerprint, light)
    assert copy.steps == recipe.steps
    batches = [list(_batches(each)) for each in (recipe, copy)]
    assert [b["__key__"] for b in batches[0]] == [b["__key__"] for b in batches[1]]
    assert [b["draw"].tolist() for b in batches[0]] == [b["draw"].tolist() for b in batches[1]]


def _batches(recipe: Recipe, threads: int = 0) -> list[dict[str, Any]]:
    with Reader(recipe, threads=threads) as reader:
        return [item for done in reader.passes([(0, recipe.share())]) if isinstance(done, Done) for item in done.items]


def test_states(small: str) -> None:
    """The state behind a step is its position; behind the last one it is the start of the next epoch."""
    recipe = _open(small, rank=1, world_size=3, tail="drop").recipe
    assert recipe.left(0) == 6
    assert recipe.left(9) == 3
    assert not recipe.over(0)
    assert not recipe.over(15)
    assert recipe.over(18)
    state = recipe.state_after(4, 3, 2)
    assert (state["epoch"], state["position"]) == (4, 9)
    state = recipe.state_after(4, 3, 5)
    assert (state["epoch"], state["position"]) == (5, 0)
    batch = {"cls": 1}
    assert recipe.sign(batch, 4, 3, 1)["__state__"] == recipe.state_after(4, 3, 2)
    assert recipe.sign((1, 2), 4, 3, 1) == (1, 2)
    assert _open(small, batch=None).recipe.sign({"cls": 1}, 0, 0, 1) == {"cls": 1}


def test_threads_of_a_reader(small: str, images: Path) -> None:
    """What is asked for counts, then what the dataset says; else light local samples take no thread, all else a fair
    share of the cores, at least one and at most MAX_THREADS.
    """
    recipe = _open(images, threads=3).recipe
    assert recipe.thread_count(5, 2) == 5
    assert recipe.thread_count(0, 2) == 0
    assert recipe.thread_count(None, 2) == 3
    heavy = replace(recipe, threads=None)
    assert heavy.thread_count(None, 1) == min(MAX_THREADS, cores())
    assert heavy.thread_count(None, 1_000) == 1
    shared = replace(heavy, place=Place(0, 1_000, 1_000))
    assert shared.thread_count(None, 1) == 1
    assert _open(small).recipe.thread_count(None, 1) == 0


@pytest.mark.parametrize("threads", [0, 3])
def test_passes_one_behind_the_other(small: str, threads: int, nothing_left: Callable[[], None]) -> None:
    """Passes come in the order in which they are asked for, each with its mark behind it, on the same threads."""
    dataset = _open(small)
    recipe = dataset.recipe
    todo = [(2, recipe.share()), (5, recipe.share(start=12)), (0, recipe.share(worker=1, workers=4))]
    got: list[list[int]] = [[]]
    marks: list[int] = []
    with Reader(recipe, threads=threads) as reader, closing(reader.passes(todo)) as passes:
        for done in passes:
            if isinstance(done, Over):
                marks.append(done.epoch)
                got.append([])
            else:
                got[-1] += flat(done.items)
    assert marks == [2, 5, 0]
    assert got[0] == [n for batch in planned(dataset, 2)[:18] for n in batch]
    assert got[1] == [n for batch in planned(dataset, 5)[12:18] for n in batch]
    assert got[2] == [n for batch in planned(dataset, 0)[1:18:4] for n in batch]
    assert got[3] == []
    nothing_left()


def test_the_next_pass_is_begun_while_one_runs(small: str) -> None:
    """What is to be read next is asked for before the pass that is read has ended."""
    recipe = _open(small).recipe
    asked: list[int] = []

    def todo() -> Any:
        for epoch in range(3):
            asked.append(epoch)
            yield epoch, recipe.share()

    with Reader(recipe, threads=4) as reader, closing(reader.passes(todo())) as passes:
        for done in passes:
            if isinstance(done, Over):
                break
            if done.unit.steps == [17]:
                assert asked == [0, 1]


@pytest.mark.parametrize(("decode", "most"), [(False, LIGHT_RUN), ({"txt": len}, RUN)])
def test_units_of_single_samples(tmp_path: Path, decode: Any, most: int) -> None:
    """Single samples come in units that grow: small at first, so that the first is there soon, larger where a sample
    takes little work.
    """
    folder = write_samples(tmp_path / "data", [(f"{i:04d}.txt", b"x") for i in range(900)])
    recipe = _open(folder, batch=None, shuffle=False, decode=decode).recipe
    with Reader(recipe, threads=0) as reader:
        sizes = [len(d.unit.steps) for d in reader.passes([(0, recipe.share())]) if isinstance(d, Done)]
    assert sum(sizes) == 900
    assert sizes[0] == 8
    assert max(sizes) == most


def test_memory_and_counters_of_the_caller(images: Path) -> None:
    """Images lie in the buffers that the reader is given, and what is done is counted where it is told to."""
    recipe = _open(images, batch=FixedBatch(2, size=160)).recipe
    buffers, counters = Buffers(), Counters()
    with (
        Reader(recipe, threads=1, buffers=buffers, counters=counters) as reader,
        closing(reader.passes([(0, recipe.share())])) as passes,
    ):
        done = next(passes)
        assert isinstance(done, Done)
        [batch] = done.items
        lent = buffers.lend(batch["jpg"])
    assert lent is not None
    assert counters.totals()["bytes_read"] >= 2 * len(jpeg(20, 30))
    assert counters.totals()["decode"] > 0


def test_memory_of_another_kind(images: Path) -> None:
    """Images lie in what the reader is told to allocate."""
    recipe = _open(images, batch=FixedBatch(2, size=32)).recipe
    shapes: list[Any] = []

    def allocate(shape: Any, dtype: Any) -> Any:
        shapes.append(tuple(shape))
        return Buffers().tensor(shape, dtype)

    with Reader(recipe, threads=0, allocate=allocate) as reader:
        list(reader.passes([(0, recipe.share())]))
    assert shapes == [(2, 3, 32, 32)] * 2


def test_ready(small: str) -> None:
    """Nothing is ready where nothing is read, and without threads nothing ever is."""
    recipe = _open(small).recipe
    with Reader(recipe, threads=0) as reader:
        assert not reader.ready()
        with closing(reader.passes([(0, recipe.share())])) as passes:
            next(passes)
            assert not reader.ready()


def test_leaving_early(small: str, nothing_left: Callable[[], None]) -> None:
    """A pass that is left leaves no thread and no open shard."""
    recipe = _open(small).recipe
    with Reader(recipe, threads=3) as reader, closing(reader.passes([(0, recipe.share())])) as passes:
        next(passes)
        assert any(thread.name.startswith("shardstream-decode") for thread in threading.enumerate())
    nothing_left()
