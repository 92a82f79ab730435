"""The disk tier of the cache shared by processes, some of which are killed."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from filling import Watcher, content, ended, entries, fill, finish, limit_for, start, weigh

from streaming.cache.contents import describe
from streaming.cache.disk import DiskTier

SIZE = 5000
LABEL = "s3://bucket/g"


def used(tier: DiskTier) -> int:
    """What the ledger says."""
    assert tier._opened is not None
    return tier._opened.budget.used()


def check(folder: Path, limit: int | None = None) -> None:
    """The next one to open the folder finds only whole entries, no rubbish, and a right account."""
    with DiskTier(folder, limit) as tier:
        assert used(tier) == weigh(folder)
        assert not list(folder.rglob("*.fill"))
        for n in entries(folder):
            assert tier.get(f"g/{n}", SIZE) == content(int(n), SIZE)
        assert tier.counters()["damaged"] == 0


def test_processes_that_read_the_same_make_each_entry_once(tmp_path: Path) -> None:
    """Four processes with orders of their own: no entry is made twice, all are right, the account is exact."""
    processes = [start(tmp_path, seed=seed, entries=40, size=SIZE) for seed in range(4)]
    with ended(processes):
        made = [n for process in processes for n in finish(process)]
    assert sorted(made) == list(range(40))
    assert entries(tmp_path) == {str(n) for n in range(40)}
    check(tmp_path)


def test_processes_together_keep_the_limit(tmp_path: Path) -> None:
    """However they fill it: never more bytes than the limit, exactly as many entries as fit, none thrown out."""
    limit = limit_for(12, SIZE, LABEL)
    processes = [start(tmp_path, limit=limit, seed=seed, entries=30, passes=3) for seed in range(3)]
    with ended(processes), Watcher(tmp_path) as watcher:
        made = [set(finish(process)) for process in processes]
    assert watcher.most == limit == weigh(tmp_path)
    assert len(entries(tmp_path)) == 12
    assert set.union(*made) == set(range(30))
    check(tmp_path, limit)


def test_a_filler_killed_at_any_moment_leaves_a_cache_that_the_next_uses(tmp_path: Path) -> None:
    """Killed again and again: the limit holds throughout, what is there is whole and used, nothing is lost for good."""
    limit = limit_for(12, SIZE, LABEL)
    moments = random.Random(7)
    with Watcher(tmp_path) as watcher:
        for seed in range(6):
            process = start(tmp_path, limit=limit, seed=seed, entries=30, passes=1000)
            with ended([process]):
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
                time.sleep(moments.random() * 0.06)
                process.send_signal(signal.SIGKILL)
    assert watcher.looks
    assert watcher.most <= limit
    check(tmp_path, limit)
    kept = entries(tmp_path)
    process = start(tmp_path, limit=limit, entries=12)
    with ended([process]):
        made = finish(process)
    assert not kept & {str(n) for n in made}
    with DiskTier(tmp_path, limit) as tier:
        tier.use("g")
        for n in range(30):
            fill(tier, f"g/{n}", content(n, SIZE))
    assert len(entries(tmp_path)) == 12
    assert weigh(tmp_path) == limit


def test_one_of_two_processes_is_killed(tmp_path: Path) -> None:
    """The other goes on, never over the limit, and what the killed one had reserved is found again meanwhile."""
    limit = limit_for(12, SIZE, LABEL)
    for seed in range(3):
        processes = [start(tmp_path, limit=limit, seed=seed + i, entries=30, passes=n) for i, n in ((0, 6), (9, 1000))]
        with ended(processes), Watcher(tmp_path) as watcher:
            assert processes[1].stdout is not None
            for _ in range(3 + seed):
                processes[1].stdout.readline()
            processes[1].send_signal(signal.SIGKILL)
            finish(processes[0])
        assert watcher.most <= limit
    assert len(entries(tmp_path)) == 12
    check(tmp_path, limit)


def test_the_next_waiting_process_makes_what_a_killed_one_did_not(tmp_path: Path) -> None:
    """The lock dies with its holder, and nothing that it reserved stays so."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:

        def never() -> bytes:
            os.write(writer, b"1")
            signal.pause()
            return b""

        DiskTier(tmp_path).fill("g/1", SIZE, never)
        os._exit(1)
    os.close(writer)
    assert os.read(reader, 1) == b"1"
    os.close(reader)
    with DiskTier(tmp_path) as tier:
        reserved = used(tier)
        asked: list[int] = []

        def wanted() -> bool:
            if not asked:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            asked.append(1)
            return True

        data = content(1, SIZE)
        assert tier.fill("g/1", SIZE, lambda: data, wanted=wanted) == (data, True)
        assert asked
        assert used(tier) == reserved == weigh(tmp_path)


def test_a_forked_child_leaves_the_locks_of_its_parent(tmp_path: Path) -> None:
    """Closing what it inherited, or ending, frees no group; and the parent's closing does, though the child lives."""
    limit = limit_for(2, 1000)
    tier = DiskTier(tmp_path, limit)
    assert all(fill(tier, f"a/{i}") for i in range(2))
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        tier.close()
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    with DiskTier(tmp_path, limit) as other:
        assert not fill(other, "b/0")
        tier.close()
    with DiskTier(tmp_path, limit) as other:
        assert fill(other, "b/1")
    assert describe(tmp_path).groups[0].in_use is False
    os.close(writer)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("kill", [False, True])
def test_a_group_is_free_when_its_last_process_ends(tmp_path: Path, kill: bool) -> None:
    """While one of two processes holds a group, nothing of it goes; once both have ended, or were killed, it does."""
    limit = limit_for(20, SIZE, LABEL)
    processes = [start(tmp_path, limit=limit, seed=seed, entries=20) for seed in range(2)]
    with ended(processes), DiskTier(tmp_path, limit) as tier:
        for process in processes:
            assert process.stdout is not None
            while process.stdout.readline() != "done 0\n":
                pass
        for process in processes:
            assert not fill(tier, "other/0", content(0, SIZE))
            assert len(entries(tmp_path)) == 20
            if kill:
                process.send_signal(signal.SIGKILL)
            process.communicate()
        deadline = time.monotonic() + 30  # a search that found nothing rests for a while
        while not fill(tier, "other/0", content(0, SIZE)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(entries(tmp_path)) == 19
        assert entries(tmp_path, "other") == {"0"}


def test_processes_of_two_datasets_share_a_folder(tmp_path: Path) -> None:
    """Groups come, go and are emptied while others open and close them; the limit and the account hold."""
    limit = limit_for(8, SIZE, LABEL)
    with Watcher(tmp_path) as watcher:
        for turn in range(2):
            processes = [
                start(tmp_path, limit=limit, seed=turn, entries=9, passes=3, group=group) for group in ("g", "h", "g")
            ]
            with ended(processes):
                for process in processes:
                    finish(process)
    assert watcher.looks
    assert watcher.most <= limit
    check(tmp_path, limit)
