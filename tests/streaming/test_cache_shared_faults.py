"""A shared tier that fails: what is asked of it is a miss, and nothing else suffers."""

from __future__ import annotations

import logging
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from shared_places import DATA, STORED, Clock, RawValkey, Where, bucket, database, folder
from valkey_server import ValkeyServer, running

from streaming.cache import redis_tier, store_tier
from streaming.cache.backend import DAY, RECOUNT
from streaming.cache.place import Place
from streaming.cache.sealed import FOOTER_BYTES
from streaming.cache.shared import SharedTier

PASSWORD = "s3kr1t/pw@x"


@pytest.fixture(scope="module")
def valkey() -> Iterator[ValkeyServer]:
    with running(password=PASSWORD) as server:
        yield server


@pytest.fixture
def base(valkey: ValkeyServer) -> Iterator[Where]:
    """An empty database."""
    with database(valkey) as where:
        yield where


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def dead() -> Iterator[int]:
    """A port on which nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def at(kind: str, port: int) -> Place:
    """A tier of a kind on this machine."""
    if kind == "valkey":
        return Place(f"redis://:hushhush@127.0.0.1:{port}/0", {})
    return Place("s3://bucket/x", {"endpoint_url": f"http://127.0.0.1:{port}", "key": "hushkey", "secret": "hushhush"})


@pytest.mark.parametrize("kind", ["valkey", "s3"])
@pytest.mark.parametrize("server", ["silent", "dead"])
def test_a_server_that_does_not_answer_is_left_alone(
    kind: str, server: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    """One get finds out, within its patience; the next are misses that ask nothing, until the rest is over.

    What is put meanwhile is dropped.  There is one warning, without a secret.
    """
    clock = Clock()
    tier = SharedTier(at(kind, request.getfixturevalue(server)), None, patience=0.1, steady=clock)
    for _ in range(20):
        assert tier.get("group/a", 100) is None
    tier.put("group/a", DATA)
    counts = tier.counters()
    assert (counts["misses"], counts["failed"] - counts["dropped"]) == (20, 1)
    clock.at += 5
    for _ in range(20):
        assert tier.get("group/a", 100) is None
    tier.close(wait=True)
    counts = tier.counters()
    assert (counts["misses"], counts["failed"], counts["dropped"]) == (40, 3, 1)
    assert len(caplog.records) == 1
    assert "hush" not in caplog.text


def test_a_server_that_is_killed_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    """Killed while threads get and put, then started anew: never a wrong byte, and it is used again after a rest."""
    clock, data = Clock(), {f"group/{i}": random.Random(i).randbytes(200_000) for i in range(8)}
    wrong: list[str] = []
    stop = threading.Event()
    with running() as server:
        tier = SharedTier(Place(server.url, {}), None, steady=clock)

        def work() -> None:
            while not stop.is_set():
                for name, whole in data.items():
                    found = tier.get(name, len(whole))
                    if found is None:
                        tier.put(name, whole)
                    elif bytes(found) != whole:
                        wrong.append(name)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        _until(lambda: tier.counters()["hits"] > 50)
        server.kill()
        _until(lambda: tier.counters()["failed"] > 0)
        hits = tier.counters()["hits"]
        _until(lambda: tier.counters()["misses"] > 1000)
        assert tier.counters()["hits"] <= hits + len(threads)
        server.start()
        clock.at += 5
        _until(lambda: tier.counters()["hits"] > hits + 50)
        stop.set()
        for thread in threads:
            thread.join()
        tier.close(wait=True)
    assert not wrong
    assert tier.counters()["damaged"] == 0
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert len({record.getMessage()[:60] for record in caplog.records}) == 1


def _until(holds: Any) -> None:
    while not holds():  # the test's own time-out ends it
        time.sleep(0.005)


@pytest.mark.parametrize("way", ["url", "options", "query"])
def test_a_wrong_password_shows_nowhere(
    way: str, valkey: ValkeyServer, base: Where, caplog: pytest.LogCaptureFixture
) -> None:
    """A password that the server refuses is a fault, and in no message, repr or pickle."""
    base.put("group/a")
    host = f"127.0.0.1:{valkey.port}/0"
    url = {"url": f"redis://me:hush%2Fhush@{host}", "query": f"redis://{host}?password=hush%2Fhush"}.get(way)
    tier = SharedTier(Place(url or f"redis://{host}", {"password": "hush/hush"} if way == "options" else {}), None)
    assert tier.get("group/a", len(DATA)) is None
    tier.put("group/b", DATA)
    tier.close(wait=True)
    counts = tier.counters()
    assert (counts["failed"], counts["dropped"], counts["stored"]) == (2, 1, 0)
    assert len(caplog.records) == 1
    place = tier._place
    for text in (caplog.text, repr(tier), repr(place), repr(tier.__dict__), tier.url, str(pickle.dumps(tier))):
        assert "hush" not in text
    again: SharedTier = pickle.loads(pickle.dumps(tier))  # with neither, so it is refused again
    assert again.get("group/a", len(DATA)) is None
    again.close(wait=True)


def test_wrong_credentials_of_a_bucket(s3: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What the storage refuses is a fault, told once for reading and writing."""
    with bucket(s3) as where:
        where.put("group/a")
        tier = SharedTier(Place(where.url, {**where.options, "secret": "hushhush"}), None)
        assert tier.get("group/a", len(DATA)) is None
        tier.put("group/b", DATA)
        tier.close(wait=True)
    assert tier.counters()["failed"] == 2
    assert len(caplog.records) == 1
    assert "403" in caplog.text
    for text in (caplog.text, repr(tier), repr(tier.__dict__), str(pickle.dumps(tier))):
        assert "hushhush" not in text


def test_what_is_full_is_still_read_from(caplog: pytest.LogCaptureFixture) -> None:
    """A server without memory for more refuses puts, all at once and with its account right, and goes on serving."""
    data = random.Random(0).randbytes(1 << 20)
    settings = ("--maxmemory", "8mb", "--maxmemory-policy", "noeviction")
    with running(settings=settings) as server, database(server) as where:
        tier = where.open()
        for i in range(12):
            tier.put(f"group/{i:02d}", data)
        tier.close(wait=True)
        counts = tier.counters()
        assert counts["stored"] >= 3
        assert counts["stored"] + counts["dropped"] == 12
        assert counts["failed"] == 1
        reader = where.open()
        for i in range(counts["stored"]):
            assert reader.get(f"group/{i:02d}", len(data)) is not None
        _check_account(where)
    assert len(caplog.records) == 1


def test_a_server_that_drops_keys_itself() -> None:
    """Where the server evicts, whatever it likes, entries are right or missing, and the account recovers."""
    clock = Clock()
    settings = ("--maxmemory", "8mb", "--maxmemory-policy", "allkeys-random")
    with running(settings=settings) as server, database(server) as where:
        data = {f"group/{i}": random.Random(i).randbytes(300_000 + i) for i in range(60)}
        tier = where.open(1 << 30, now=clock)
        for name, whole in data.items():
            tier.put(name, whole)
        tier.close(wait=True)
        reader = where.open()
        found = {name: reader.get(name, len(whole)) for name, whole in data.items()}
        assert 0 < sum(each is not None for each in found.values()) < 60
        assert all(each is None or each == data[name] for name, each in found.items())
        assert reader.counters()["damaged"] == 0
        where.raw.client.config_set("maxmemory", 0)  # type: ignore[attr-defined]
        _recount(where, clock)
        _check_account(where)


def test_an_account_that_is_wrong_is_set_right(base: Where) -> None:
    """Bytes that the account has and that are not there, or the other way round, are found by the next count."""
    clock = Clock()
    base.put("group/a", "group/b", "lost/a", limit=1 << 30, now=clock)
    client = base.raw.client  # type: ignore[attr-defined]
    client.hset(redis_tier.BYTES, "group", 1 << 40)
    client.hset(redis_tier.SIZES + "group", "gone", 1 << 40)
    client.delete(redis_tier.SIZES + "lost", redis_tier.USED)
    client.hdel(redis_tier.BYTES, "lost")
    assert base.put("group/c", limit=1 << 30, now=clock)["refused"] == 1  # somebody has just counted
    _recount(base, clock)
    _check_account(base)
    client.delete(redis_tier.USED)
    clock.at += 2 * DAY
    assert base.put("new/a", limit=4 * STORED, now=clock)["evicted"] == 0  # a use that is not known counts from now
    clock.at += 2 * DAY
    assert base.put("newer/a", limit=4 * STORED, now=clock)["evicted"] > 0
    _check_account(base)


def _recount(where: Where, clock: Clock) -> None:
    clock.at += RECOUNT
    where.raw.client.delete(redis_tier.COUNTING)  # type: ignore[attr-defined]
    where.put("group/last", limit=1 << 30, now=clock)


def _check_account(where: Where) -> None:
    """Compare the account with what is there."""
    client = where.raw.client  # type: ignore[attr-defined]
    sizes: dict[str, int] = {}
    for name in where.raw.keys():  # noqa: SIM118
        group = name.partition("/")[0]
        sizes[group] = sizes.get(group, 0) + int(client.strlen(redis_tier.CHUNK + name))
    known = {group.decode(): int(size) for group, size in client.hgetall(redis_tier.BYTES).items()}
    assert {group: size for group, size in known.items() if size} == sizes
    for group, size in sizes.items():
        assert sum(map(int, client.hvals(redis_tier.SIZES + group))) == size


PUTTING = """
    import pickle, random, sys
    tier = pickle.loads(bytes.fromhex(sys.argv[1]))
    print("ready", flush=True)
    for i in range(1_000_000):
        name = f"group/{sys.argv[2]}-{i % 50}"
        if tier.get(name, 100_000) is None:
            tier.put(name, random.Random(name).randbytes(100_000))
"""


@pytest.mark.parametrize("kind", ["folder", "valkey"])
def test_jobs_that_are_killed(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Processes killed while they put leave whole entries only, and a right account."""
    place = folder(tmp_path / "shared") if kind == "folder" else database(request.getfixturevalue("valkey"))
    with place as where:
        state = where.sent_to_child(1 << 30)
        for seed in range(2):
            child = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(PUTTING), state, str(seed)],
                env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
                stdout=subprocess.PIPE,
            )
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            time.sleep(random.Random(seed).uniform(0.01, 0.15))
            child.send_signal(signal.SIGKILL)
            child.communicate()
        tier = where.open(1 << 30)
        for name in where.raw.keys():  # noqa: SIM118
            assert tier.get(name, 100_000) == random.Random(name).randbytes(100_000)
        assert tier.counters()["damaged"] == 0
        if isinstance(where.raw, RawValkey):
            _check_account(where)


def test_a_place_that_can_not_be_written_to(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file where the folder should be: misses, dropped puts, one warning, and the file stays."""
    (tmp_path / "shared").write_text("mine")
    with folder(tmp_path / "shared") as where:
        tier = where.open(1 << 30)
        for i in range(5):
            assert tier.get(f"group/{i}", 10) is None
            tier.put(f"group/{i}", DATA)
        tier.close(wait=True)
    counts = tier.counters()
    assert (counts["misses"], counts["stored"], counts["dropped"], counts["failed"]) == (5, 0, 5, 1)
    assert (tmp_path / "shared").read_text() == "mine"
    assert len(caplog.records) == 1


@pytest.mark.parametrize("mark", [b"", b"rubbish", b"[]", b'{"used": 1}', b'{"shardstream": 1, "used": "x"}'])
def test_groups_with_marks_of_others_stay(mark: bytes, tmp_path: Path) -> None:
    """A mark that is not ours says that the group may not be either."""
    clock = Clock()
    with folder(tmp_path) as where:
        where.put("group/a", limit=STORED, now=clock)
        (tmp_path / f"group{store_tier.MARK}").write_bytes(mark)
        clock.at += 10 * DAY
        assert where.put("new/a", limit=STORED, now=clock)["refused"] == 1
        assert where.raw.keys() == {"group/a"}


def test_a_group_without_a_mark_goes_a_day_later(tmp_path: Path) -> None:
    """Where the mark was lost, use is counted from when that was found."""
    clock = Clock()
    with folder(tmp_path) as where:
        where.put("group/a", limit=STORED, now=clock)
        (tmp_path / f"group{store_tier.MARK}").unlink()
        clock.at += 10 * DAY
        assert where.put("new/a", limit=STORED, now=clock)["refused"] == 1
        clock.at += 10 * DAY
        assert where.put("new/a", limit=STORED, now=clock)["evicted"] == 1
        assert where.raw.keys() == {"new/a"}


def test_answers_that_take_too_long(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What comes after more than `patience` is used, and then the tier rests: the origin may be quicker."""
    with folder(tmp_path) as where:
        where.put("group/a")
    tier = SharedTier(Place(str(tmp_path), {}), None, patience=1e-9, steady=Clock())
    assert tier.get("group/a", len(DATA)) == DATA
    assert tier.get("group/a", len(DATA)) is None
    assert tier.counters()["failed"] == 1
    assert "took" in caplog.text


def test_what_changes_while_it_waits_is_not_whole(tmp_path: Path) -> None:
    """Data that its owner overwrites before it is stored is never had as the entry's bytes."""
    with folder(tmp_path) as where:
        tier = where.open()
        for i in range(50):
            data = bytearray(DATA)
            tier.put(f"group/{i}", data)
            data[:] = bytes(len(data))
        tier.close(wait=True)
        found = [where.open().get(f"group/{i}", len(DATA)) for i in range(50)]
        assert all(each is None or each == DATA for each in found)


def test_what_waits_to_be_stored_is_bounded(silent: int) -> None:
    """Puts to a server that does not answer hold at most 64 MB, and the others are dropped at once."""
    tier = SharedTier(at("valkey", silent), None, patience=0.1)
    data = bytes(8 << 20)
    for i in range(20):
        tier.put(f"group/{i}", data)
    assert tier.counters()["dropped"] >= 12
    tier.close(wait=False)
    assert tier.counters()["dropped"] == 20
    assert len(DATA) + FOOTER_BYTES == STORED
