"""Chunks in memory: loaded ahead, counted down, let go, kept."""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.errors import StoreError
from streaming.cache import memory as memory_module
from streaming.cache.memory import Key, Memory
from streaming.cache.tiers import Loaded


class Source:
    """Loads chunks, and counts how often."""

    def __init__(self, *, mapped: bool = False) -> None:
        self.loaded: list[Key] = []
        self.mapped = mapped

    def load(self, key: Key) -> Callable[[], Loaded]:
        """What loads a chunk."""

        def run() -> Loaded:
            self.loaded.append(key)
            return Loaded(memoryview(repr(key).encode()), "disk" if self.mapped else "origin", mapped=self.mapped)

        return run


def _take(memory: Memory, source: Source, key: Key, taken: int = 1, samples: int = 4, *, keep: bool = False) -> Loaded:
    loaded = memory.take(key, 100, samples, taken, source.load(key), keep=lambda: keep)
    assert bytes(loaded.data) == repr(key).encode()
    return loaded


def test_a_chunk_is_loaded_once_for_all_its_samples(nothing_left: Callable[[], None]) -> None:
    """Asked for, and then taken in parts, a chunk is loaded once; when all samples were taken it is let go."""
    memory, source = Memory(1000), Source()
    memory.ask((0, 0), 100, 4, source.load((0, 0)))
    for _ in range(4):
        _take(memory, source, (0, 0))
    assert source.loaded == [(0, 0)]
    _take(memory, source, (0, 0))
    assert source.loaded == [(0, 0)] * 2
    memory.rest()


def test_what_nobody_asked_for_is_loaded_when_it_is_taken(nothing_left: Callable[[], None]) -> None:
    """Taking needs no asking, and does not wait for room."""
    memory, source = Memory(100), Source()
    for chunk in range(5):
        _take(memory, source, (0, chunk))
    assert len(source.loaded) == 5
    memory.rest()


def test_asking_waits_for_room(nothing_left: Callable[[], None]) -> None:
    """No more is loaded ahead than there is room for; taking makes room."""
    memory, source = Memory(250), Source()
    asked: list[int] = []

    def ask() -> None:
        for chunk in range(6):
            memory.ask((0, chunk), 100, 1, source.load((0, chunk)))
            asked.append(chunk)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(0.3)
    assert asked == [0, 1]
    for chunk in range(6):
        deadline = time.monotonic() + 30
        while chunk not in asked and time.monotonic() < deadline:
            time.sleep(0.001)
        _take(memory, source, (0, chunk), samples=1)
    thread.join(30)
    assert asked == list(range(6))
    assert sorted(source.loaded) == [(0, chunk) for chunk in range(6)]
    memory.rest()


def test_a_chunk_that_is_not_asked_for_makes_room() -> None:
    """Where there is no room, the chunk that was taken least lately goes, and is loaded again if it is wanted."""
    memory, source = Memory(300), Source()
    for chunk in (0, 1, 2, 0):
        _take(memory, source, (0, chunk))
    memory.ask((0, 3), 100, 4, source.load((0, 3)))
    _take(memory, source, (0, 3))
    for chunk in (0, 2):
        _take(memory, source, (0, chunk))
    assert source.loaded == [(0, 0), (0, 1), (0, 2), (0, 3)]
    _take(memory, source, (0, 1))
    assert source.loaded[-1] == (0, 1)
    memory.rest()


def test_mapped_chunks_take_no_room_but_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mapped files are not counted as memory; only so many are open at a time."""
    monkeypatch.setattr(memory_module, "MAPS", 8)
    memory, source = Memory(200), Source(mapped=True)
    for chunk in range(20):
        memory.ask((0, chunk), 100, 4, source.load((0, chunk)))
        _take(memory, source, (0, chunk))
    assert len(source.loaded) == 20
    for chunk in range(13, 20):
        _take(memory, source, (0, chunk))
    assert len(source.loaded) == 20
    memory.rest()


def test_kept_chunks_serve_the_next_epoch() -> None:
    """Chunks that are wanted again stay as far as they fit; they are then given from memory."""
    memory, source = Memory(1000, keep=250), Source()
    first = [_take(memory, source, (0, chunk), taken=4, keep=True).tier for chunk in range(4)]
    memory.rest()
    memory.begin()
    again = [_take(memory, source, (0, chunk), taken=4, keep=True).tier for chunk in range(4)]
    assert first == ["origin"] * 4
    assert again == ["memory", "memory", "origin", "origin"]
    for chunk in range(2):
        _take(memory, source, (0, chunk), taken=4, keep=False)
    assert [_take(memory, source, (0, chunk), taken=4, keep=True).tier for chunk in (2, 3)] == ["origin"] * 2
    assert [_take(memory, source, (0, chunk), taken=4, keep=True).tier for chunk in (2, 3)] == ["memory"] * 2
    memory.rest()


def test_chunks_whose_last_samples_are_dropped_are_kept_too() -> None:
    """A chunk that an epoch leaves with samples untaken stays at its end where it is wanted again."""
    memory, source = Memory(1000, keep=1000), Source()
    _take(memory, source, (0, 0), taken=3, keep=True)
    _take(memory, source, (0, 1), taken=3, keep=False)
    memory.rest()
    memory.begin()
    assert [_take(memory, source, (0, chunk)).tier for chunk in (0, 1)] == ["memory", "origin"]
    memory.rest()


def test_errors_are_raised_where_the_chunk_is_taken() -> None:
    """Loading that fails is no error for who asks; it is for who takes, and the next one tries again."""
    memory, source = Memory(1000), Source()

    def fails() -> Loaded:
        raise StoreError("gone")

    memory.ask((0, 0), 100, 4, fails)
    with pytest.raises(StoreError, match="gone"):
        memory.take((0, 0), 100, 4, 1, source.load((0, 0)))
    _take(memory, source, (0, 0))
    memory.rest()


def test_rest_wakes_all_who_wait(nothing_left: Callable[[], None]) -> None:
    """Who waits for a chunk gets an error, who waits for room goes on, and nothing is loaded until begin."""
    memory, source = Memory(150), Source()
    go, errors = threading.Event(), list[StoreError]()

    def slow() -> Loaded:
        go.wait(30)
        return Loaded(memoryview(b""), "origin")

    def take() -> None:
        try:
            memory.take((0, 0), 100, 4, 1, slow)
        except StoreError as error:
            errors.append(error)

    def ask() -> None:
        memory.ask((0, 1), 100, 4, source.load((0, 1)))

    threads = [threading.Thread(target=take), threading.Thread(target=ask)]
    for thread in threads:
        thread.start()
        thread.join(0.2)
    ending = threading.Thread(target=memory.rest)
    ending.start()
    for thread in threads:
        thread.join(30)
    go.set()
    ending.join(30)
    assert len(errors) == 1
    assert source.loaded == []
    with pytest.raises(StoreError, match="closed"):
        _take(memory, source, (0, 2))
    memory.begin()
    _take(memory, source, (0, 2))
    memory.rest()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3), st.booleans(), st.booleans()), max_size=60))
def test_no_more_is_held_than_allowed(steps: list[tuple[int, int, bool, bool]]) -> None:
    """Whatever is asked and taken, what is kept stays within its bound, and each chunk given is the right one."""
    memory, source = Memory(10_000, keep=200), Source()
    try:
        for chunk, taken, asked, keep in steps:
            if asked:
                memory.ask((0, chunk), 100, 4, source.load((0, chunk)))
            _take(memory, source, (0, chunk), taken, keep=keep)
            assert memory._kept == 100 * sum(entry.kept for entry in memory._entries.values()) <= 200
            assert memory._held == 100 * len(memory._entries) <= 600
    finally:
        memory.rest()
    assert memory._held == memory._kept


def test_a_mapped_file_is_no_memory() -> None:
    """What is kept is counted without what is mapped."""
    mapped = memoryview(mmap.mmap(-1, 4096))
    memory = Memory(1000, keep=1000)
    memory.take((0, 0), 4096, 1, 1, lambda: Loaded(mapped, "disk", mapped=True), keep=lambda: True)
    assert memory._kept == 0
    memory.rest()
