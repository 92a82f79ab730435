"""The shared tier, alike in a folder, in a bucket of a real S3 server, and in a real Valkey server."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from shared_places import DATA, STORED, Clock, RawStore, RawValkey, Where, bucket, database, folder
from valkey_server import ValkeyServer, running

from shardwriter.errors import StoreError
from shardwriter.store import open_store
from streaming.cache import redis_tier, shared, store_tier
from streaming.cache.backend import DAY
from streaming.cache.place import Place
from streaming.cache.sealed import FOOTER_BYTES, seal
from streaming.cache.shared import SharedTier, open_shared


@pytest.fixture(scope="module")
def valkey() -> Iterator[ValkeyServer]:
    with running(password="s3kr1t/pw") as server:
        yield server


@pytest.fixture(params=["folder", "s3", "valkey"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Where]:
    """An empty place of each kind."""
    if request.param == "folder":
        place = folder(tmp_path / "shared")
    elif request.param == "s3":
        place = bucket(request.getfixturevalue("s3"))
    else:
        place = database(request.getfixturevalue("valkey"))
    with place as where:
        yield where


def test_what_is_put_is_there_for_other_machines(where: Where) -> None:
    """An entry that one tier put is had by another with the same bytes; names that were not put are misses."""
    assert where.put("group/a-0-ff", "group/b.index")["stored"] == 2
    other = where.open()
    assert bytes(other.get("group/a-0-ff", len(DATA)) or b"") == DATA
    assert other.get("group/c", len(DATA)) is None
    assert other.get("other/a-0-ff", len(DATA)) is None
    counts = other.counters()
    assert (counts["hits"], counts["misses"], counts["hit_bytes"]) == (1, 2, len(DATA))
    assert set(counts) == set(shared.COUNTERS)


def test_what_is_there_is_not_stored_again(where: Where) -> None:
    """A second put of an entry stores nothing."""
    assert where.put("group/a", "group/a")["stored"] == 1
    assert where.put("group/a")["stored"] == 0
    assert where.raw.keys() == {"group/a"}


def test_an_empty_entry_is_an_entry(where: Where) -> None:
    """Zero bytes are stored and had as such."""
    tier = where.open()
    tier.put("group/none", b"")
    tier.close(wait=True)
    found = where.open().get("group/none", 0)
    assert found is not None
    assert len(found) == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda stored: b"",
        lambda stored: stored[:1000],
        lambda stored: stored[:-1],
        lambda stored: bytes(len(stored)),
        lambda stored: stored[:100] + bytes([stored[100] ^ 1]) + stored[101:],
        lambda stored: stored[1:-FOOTER_BYTES] + seal(stored[1:-FOOTER_BYTES]),
    ],
    ids=["empty", "cut", "short", "zeroes", "flipped", "other"],
)
def test_a_damaged_entry_is_as_good_as_none(where: Where, damage: Callable[[bytes], bytes]) -> None:
    """An entry that is not whole is no hit and no fault; it is removed, and can be put again."""
    where.put("group/a")
    where.raw.damage("group/a", damage(where.raw.read("group/a")))
    tier = where.open()
    assert tier.get("group/a", len(DATA)) is None
    tier.put("group/a", DATA)
    tier.close(wait=True)
    counts = tier.counters()
    assert (counts["damaged"], counts["misses"], counts["failed"], counts["stored"]) == (1, 1, 0, 1)
    assert bytes(where.open().get("group/a", len(DATA)) or b"") == DATA


def test_a_limit_holds_and_nothing_is_thrown_out_for_it(where: Where) -> None:
    """Entries come in while they fit; later ones are refused, also those of another group and another machine."""
    limit = 3 * STORED + 10
    counts = where.put("group/a", "group/b", "group/c", "group/d", limit=limit)
    assert (counts["stored"], counts["refused"], counts["evicted"]) == (3, 1, 0)
    counts = where.put("other/a", "group/a", limit=limit)
    assert (counts["stored"], counts["refused"], counts["evicted"]) == (0, 1, 0)
    assert where.raw.keys() == {"group/a", "group/b", "group/c"}
    assert where.put("group/a", limit=100)["refused"] == 0  # it is there already
    assert where.put("other/b", limit=100)["refused"] == 1


def test_room_is_made_by_groups_that_were_not_used_for_a_day(where: Where) -> None:
    """The least recently used group goes first; what was used within a day never goes, nor does anything foreign."""
    clock, limit = Clock(), 4 * STORED
    foreign = where.raw.add_foreign()
    for name in ("old/a", "old/b", "older/a"):
        clock.at += 60
        where.put(name, limit=limit, now=clock)
    old = where.open(limit, now=clock)
    clock.at += 60
    old.use("old", "s3://bucket/old")
    old.close(wait=True)
    clock.at += DAY - 100
    counts = where.put("new/a", "new/b", limit=limit, now=clock)
    assert (counts["stored"], counts["refused"], counts["evicted"]) == (1, 1, 0)
    clock.at += 90  # a day after `older` was used, not yet a day after `old` was
    counts = where.put("newer/a", "newer/b", limit=limit, now=clock)
    assert (counts["stored"], counts["refused"], counts["evicted"]) == (1, 1, 1)
    assert where.raw.keys() == {"old/a", "old/b", "new/a", "newer/a"} | foreign
    clock.at += 100
    counts = where.put("newer/c", "newer/d", limit=limit, now=clock)
    assert counts["stored"] == counts["evicted"] == 2
    assert where.raw.keys() == {"new/a", "newer/a", "newer/c", "newer/d"} | foreign


def test_a_group_in_use_is_noted_every_hour(where: Where) -> None:
    """A job that only reads keeps its group for days, label and all."""
    clock, limit = Clock(), STORED
    where.put("group/a", limit=limit, now=clock)
    reader = where.open(now=clock)
    reader.use("group", "s3://bucket/set")
    clock.at += 3 * DAY
    assert reader.get("group/a", len(DATA)) is not None
    reader.close(wait=True)
    counts = where.put("new/a", limit=limit, now=clock)
    assert (counts["refused"], counts["evicted"]) == (1, 0)
    if isinstance(where.raw, RawStore):
        assert json.loads(where.raw.store.read("group" + store_tier.MARK))["label"] == "s3://bucket/set"
    elif isinstance(where.raw, RawValkey):
        assert where.raw.client.hget(redis_tier.LABEL, "group") == b"s3://bucket/set"


def test_a_job_never_drops_what_it_uses(where: Where) -> None:
    """A job's own groups stay, whatever their marks say."""
    clock = Clock()
    tier = where.open(2 * STORED, now=clock)
    tier.put("group/a", DATA)
    clock.at += 2 * DAY
    for name in ("other/a", "other/b", "group/b"):
        tier.put(name, DATA)
    tier.close(wait=True)
    assert tier.counters()["evicted"] == 0
    assert where.raw.keys() == {"group/a", "other/a"}


PROCESS = """
    import pickle, random, sys
    tier = pickle.loads(bytes.fromhex(sys.argv[1]))
    names = [f"group/{i:02d}" for i in range(40)]
    random.Random(int(sys.argv[2])).shuffle(names)
    for name in names:
        data = random.Random(name).randbytes(20_000)
        found = tier.get(name, len(data))
        assert found is None or bytes(found) == data
        tier.put(name, data)
    tier.close(wait=True)
    counts = tier.counters()
    assert counts["failed"] == counts["damaged"] == counts["dropped"] == 0, counts
    print(counts["stored"])
"""


def test_two_processes_put_and_get_at_once(where: Where) -> None:
    """Processes that put and get the same entries at the same time see right bytes, and all is there at the end."""
    state = where.sent_to_child(limit=40 * 20_100)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROCESS), state, str(seed)],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(2)
    ]
    stored = [int(child.communicate(timeout=120)[0]) for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert 40 <= sum(stored) <= 80
    assert where.raw.keys() == {f"group/{i:02d}" for i in range(40)}
    tier = where.open()
    for i in range(40):
        assert tier.get(f"group/{i:02d}", 20_000) is not None
    if isinstance(where.raw, RawValkey):
        assert account(where.raw) == {"group": 40 * (20_000 + FOOTER_BYTES)}


def account(raw: RawValkey) -> dict[str, int]:
    """Bytes by group, as the server has them."""
    return {group.decode(): int(size) for group, size in raw.client.hgetall(redis_tier.BYTES).items()}


def test_closing_leaves_no_thread_and_no_connection(where: Where) -> None:
    """After close all gets miss and all puts are dropped, and neither thread nor socket is left."""

    def connections() -> int:
        return sum(each.status == psutil.CONN_ESTABLISHED for each in psutil.Process().net_connections("tcp"))

    gc.collect()
    threads, before = set(threading.enumerate()), connections()
    tier = SharedTier(Place(where.url, where.options), None)
    tier.put("group/a", DATA)
    tier.get("group/a", len(DATA))
    tier.close(wait=True)
    assert set(threading.enumerate()) <= threads
    gc.collect()
    deadline = threading.Event()
    while connections() > before and not deadline.wait(0.05):  # the test's own time-out ends it
        pass
    assert tier.get("group/a", len(DATA)) is None
    tier.put("group/b", DATA)
    tier.use("group", "again")
    tier.close(wait=True)
    assert tier.counters()["dropped"] == 1
    assert where.raw.keys() == {"group/a"}


def test_closing_without_waiting_leaves_out_what_is_queued(where: Where) -> None:
    """What was not stored yet is dropped and counted, entry by entry."""
    tier = where.open()
    for i in range(50):
        tier.put(f"group/{i}", DATA)
    tier.close(wait=False)
    counts = tier.counters()
    assert counts["stored"] + counts["dropped"] == 50
    assert len(where.raw.keys()) == counts["stored"]


def test_a_forked_child_has_connections_of_its_own(where: Where) -> None:
    """A child forked from a process that uses the tier gets and puts, and neither disturbs the other."""
    script = """
        import os, pickle, sys, warnings
        warnings.simplefilter("ignore")
        tier = pickle.loads(bytes.fromhex(sys.argv[1]))
        assert bytes(tier.get("group/a", 3)) == b"abc"
        if (child := os.fork()) == 0:
            right = bytes(tier.get("group/a", 3)) == b"abc" and tier.counters()["hits"] == 1
            tier.put("group/b", b"child")
            tier.close(wait=True)
            os._exit(0 if right and tier.counters()["stored"] == 1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert bytes(tier.get("group/b", 5)) == b"child"
        tier.close(wait=True)
    """
    tier = where.open()
    tier.put("group/a", b"abc")
    tier.close(wait=True)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), where.sent_to_child()],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["a", "a/b/c", "../a", "a/..", "A/b", "a/b_c", "/a", "a/", "a/" + 81 * "b"])
def test_names_are_checked(tmp_path: Path, name: str) -> None:
    """A name that is not group/entry is a mistake of the caller, and nothing is stored outside the tier."""
    tier = open_shared(tmp_path / "shared")
    with pytest.raises(ValueError, match="group/entry"):
        tier.get(name, 1)
    with pytest.raises(ValueError, match="group/entry"):
        tier.put(name, b"1")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("redis://host:port/0", {}),
        ("redis://host/0", {"pasword": "hush"}),
        ("REDIS://host", {}),
        ("s3://", {}),
        ("s3://bucket/x", {"pasword": "hush"}),
        ("nothing://host/x", {}),
        ("redis://:hush/hush@host/0", {}),
    ],
)
def test_what_can_not_be_opened_is_an_error_at_once(url: str, options: dict[str, Any]) -> None:
    """A URL or an option that is not known is a StoreError that shows no secret."""
    with pytest.raises(StoreError) as caught:
        open_shared(url, None, options)
    assert "hush" not in str(caught.value)
    assert caught.value.hint


def test_writers_that_were_killed_leave_nothing_for_ever(tmp_path: Path) -> None:
    """Temporary files in a folder that are a day old are removed, those of others and younger ones are not."""
    where = Where(str(tmp_path), {}, RawStore(open_store(tmp_path)))
    where.put("group/a")
    old, young = (tmp_path / "group" / f".shardstream-{digit * 16}.tmp" for digit in "01")
    foreign = tmp_path / "photos" / f".shardstream-{'2' * 16}.tmp"
    foreign.parent.mkdir()
    for path in (old, young, foreign):
        path.write_bytes(b"part")
    for path in (old, foreign):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    where.put("group/b", limit=10 * STORED)
    assert not old.exists()
    assert young.exists()
    assert foreign.exists()
