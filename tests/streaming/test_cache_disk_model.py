"""The disk tier of the cache against a model: any sequence of reading, filling, opening, closing and dying."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from filling import content, entries, limit_for, weigh
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from streaming.cache.budget import Budget
from streaming.cache.disk import DiskTier
from streaming.cache.entries import Claim
from streaming.cache.sealed import FOOTER_BYTES

GROUPS = ("a", "b", "c", "d")
SIZES = (100, 250, 700)
LIMIT = limit_for(2, 700)


def size_of(entry: int) -> int:
    """Each entry has a size of its own."""
    return SIZES[entry % 3]


class CacheMachine(RuleBasedStateMachine):
    """Two tiers, as of two processes, over one folder; clocks run so fast that no search rests."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp()) / "cache"
        self.tiers: list[DiskTier | None] = [None, None]
        self.using: list[set[str]] = [set(), set()]
        self.time = itertools.count(1)

    def teardown(self) -> None:
        """With nobody left, the account is exact."""
        for i in range(2):
            self.close(i)
        with DiskTier(self.folder, LIMIT) as tier:
            assert tier._opened is not None
            assert tier._opened.budget.used() == weigh(self.folder)
        shutil.rmtree(self.folder.parent)

    def there(self) -> dict[str, set[str]]:
        """Names of the entries of each group."""
        return {group: entries(self.folder, group) for group in GROUPS}

    def in_use(self) -> set[str]:
        """Groups that any tier uses."""
        return set.union(*self.using)

    def tier(self, i: int) -> DiskTier:
        """Tier i, opened."""
        opened = self.tiers[i]
        if opened is None:
            clock: Callable[[], float] = itertools.count(0.0, 1000.0).__next__
            opened = self.tiers[i] = DiskTier(self.folder, LIMIT, recount_every=0, clock=clock)
        return opened

    @initialize()
    def start(self) -> None:
        """The folder is there."""
        self.tier(0)

    @rule(i=st.integers(0, 1), group=st.sampled_from(GROUPS))
    def use(self, i: int, group: str) -> None:
        """Keeps a group from being evicted."""
        self.tier(i).use(group)
        self.using[i].add(group)

    @rule(i=st.integers(0, 1))
    def close(self, i: int) -> None:
        """Groups that nobody uses any more can go; that they were used just now is written in the model's time."""
        tier, self.tiers[i] = self.tiers[i], None
        left, self.using[i] = self.using[i], set()
        if tier is not None:
            tier.close()
        for group in left - self.in_use():
            now = next(self.time)
            os.utime(self.folder / group / ".use", (now, now))

    @rule()
    def close_all(self) -> None:
        """As when jobs end; then everything may go."""
        for i in range(2):
            self.close(i)

    @rule(i=st.integers(0, 1), group=st.sampled_from(GROUPS), entry=st.integers(0, 7))
    def get(self, i: int, group: str, entry: int) -> None:
        """Finds what is there, with the right bytes."""
        known = str(entry) in self.there()[group]
        found = self.tier(i).get(f"{group}/{entry}", size_of(entry))
        self.using[i].add(group)
        assert found == (content(entry, size_of(entry)) if known else None)

    @rule(
        i=st.integers(0, 1), group=st.sampled_from(GROUPS), entry=st.integers(0, 7),
        spare=st.sets(st.integers(0, 7)) | st.none(), fails=st.sampled_from([False] * 5 + [True]),
    )  # fmt: skip
    def fill(self, i: int, group: str, entry: int, spare: set[int] | None, fails: bool) -> None:
        """Stores where there is room or some can be made; what goes for it may go, and goes in order."""
        tier, size = self.tier(i), size_of(entry)
        tier.use(group)
        self.using[i].add(group)
        used = self.in_use()
        ages = {g: (self.folder / g / ".use").stat().st_mtime for g in GROUPS if (self.folder / g / ".use").exists()}
        before, refused = self.there(), tier.counters()["refused"]
        may_go = None if spare is None else lambda name: int(name) in spare

        def make() -> bytes:
            if fails:
                raise KeyError(entry)
            return content(entry, size)

        try:
            data, made = tier.fill(f"{group}/{entry}", size, make, spare=may_go)
        except KeyError:
            assert fails
            made = True
        else:
            assert data == content(entry, size)
        assert made == (str(entry) not in before[group])

        after = self.there()
        lost = {g: before[g] - after[g] for g in GROUPS}
        for g in GROUPS:
            if g in used:
                assert lost[g] <= ({str(n) for n in spare or ()} if g == group else set())
            for older in set(ages) - used:
                assert not (lost[g] and g != older and after[older] and (g in used or ages[older] < ages[g])), "order"
        if tier.counters()["refused"] > refused:
            assert weigh(self.folder) + size + FOOTER_BYTES > LIMIT
            assert not any(after[g] for g in set(GROUPS) - used)
            assert not {str(n) for n in spare or ()} & after[group]
        elif not fails:
            assert str(entry) in after[group]

    @rule(i=st.integers(0, 1), group=st.sampled_from(GROUPS), entry=st.integers(0, 7), part=st.integers(0, 700))
    @precondition(lambda self: any(self.tiers))
    def die(self, i: int, group: str, entry: int, part: int) -> None:
        """As a process that is killed while it makes an entry."""
        tier = self.tier(i)
        tier.use(group)
        self.using[i].add(group)
        assert tier._opened is not None
        claim = Claim.take(tier._opened.budget, str(self.folder / group / str(entry)))
        assert claim is not None
        if tier._opened.budget.reserve(claim.fd, size_of(entry) + FOOTER_BYTES):
            os.pwrite(claim.fd, content(entry, size_of(entry))[:part], 0)
        os.close(claim.fd)

    @invariant()
    def limit_holds(self) -> None:
        """Of what is there, and the account is never below it."""
        assert weigh(self.folder) <= LIMIT
        for tier in self.tiers:
            if tier is not None:
                assert tier._opened is not None
                assert tier._opened.budget.used() >= weigh(self.folder)


CacheMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestCacheMachine = CacheMachine.TestCase


@pytest.mark.parametrize("when", ["before", "after", "unseen"])
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("doing", ["reserve", "publish", "remove"])
def test_counting_while_others_go_on(tmp_path: Path, when: str, alone: bool, doing: str) -> None:
    """The count is never below what is there, whether a walk sees a change or not; the next quiet one is exact."""
    group = tmp_path / "g"
    group.mkdir()
    (group / ".use").write_bytes(b"")
    (group / "old.chunk").write_bytes(bytes(300))

    class Walking(Budget):
        def _walk(self) -> int:
            if when == "before":
                change()
            found = super()._walk()
            if when != "before":
                change()
            # A folder that is read while a file gets another name may show it under neither.
            return found - 500 if (doing, when) == ("publish", "unseen") else found

    def change() -> None:
        if doing == "remove":
            assert other.remove(str(group / "old.chunk")) == 300
        elif doing == "reserve":
            assert other.reserve(fd, 500)
        else:
            other.publish(str(group / "new.fill"), str(group / "new.chunk"), fd)

    other, budget = Budget(str(tmp_path), None), Walking(str(tmp_path), None)
    other.recount(0, alone=True)
    claim = Claim.take(other, str(group / "new"))  # its lock says that the file is being written
    assert claim is not None
    fd = claim.fd
    if doing == "publish":
        assert other.reserve(fd, 500)
    before = other.used()
    assert budget.recount(0, alone=alone)
    assert weigh(tmp_path) <= other.used() <= before + 500
    assert other.recount(0)
    assert other.used() == weigh(tmp_path)
    claim.drop()
    assert other.used() == weigh(tmp_path)
    other.close()
    budget.close()
