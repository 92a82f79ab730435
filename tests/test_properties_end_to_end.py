"""Any small dataset, read through any layout, is the plan."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reading import by_position, numbers, planned, write_numbered

from streaming import FixedBatch, PlanError, Shuffle, StreamingDataset

COUNTS = st.lists(st.sampled_from([0, 1, 2, 3, 5, 8, 13]), min_size=1, max_size=6)
OPTIONS = st.fixed_dictionaries(
    {
        "batch": st.sampled_from([None, FixedBatch(1), FixedBatch(2), FixedBatch(3), FixedBatch(7), FixedBatch(50)]),
        "shuffle": st.sampled_from([False, True, Shuffle(shards=1, buffer=1), Shuffle(shards=2, buffer=3)]),
        "tail": st.sampled_from(["drop", "pad", "uneven"]),
        "lanes": st.sampled_from([None, 1, 2, 3]),
        "seed": st.integers(0, 1 << 40),
        "threads": st.sampled_from([0, 2]),
        "fields": st.sampled_from([None, ["cls"], {"cls": "cls", "caption": "txt"}]),
        "ahead_bytes": st.sampled_from([1, 1 << 20]),
    }
)


def _read(folder: Path, ranks: int, options: dict[str, Any], state: Any) -> list[list[Any]]:
    """All that each rank gives, from a state on."""
    out = []
    for rank in range(ranks):
        dataset = StreamingDataset(folder, rank=rank, world_size=ranks, **options)
        if state is not None:
            dataset.load_state_dict(state)
        out.append(list(dataset))
    return out


def _expected(plan: list[list[int]], start: int, ranks: int, options: dict[str, Any]) -> list[list[int]]:
    """What the contracts say comes from a position on, laid out by position."""
    size = options["batch"].samples if options["batch"] else 1
    left = plan[start:]
    if options["tail"] == "uneven":
        return left
    if options["tail"] == "drop":
        whole = sum(len(b) == size for b in left)
        return left[: whole // ranks * ranks]
    steps = -(-len(left) // ranks)
    return left + [plan[i % len(plan)] for i in range(steps * ranks - len(left))]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(COUNTS, OPTIONS, st.integers(1, 4), st.integers(1, 4), st.integers(0, 2), st.floats(0, 1))
def test_any_dataset_on_any_layout(
    counts: list[int], options: dict[str, Any], ranks: int, others: int, epoch: int, part: float
) -> None:
    """For any shard sizes, batches, shuffles, tails, fields, threads and ranks the epoch is the plan's, and a run that
    stops anywhere goes on exactly on other ranks.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = write_numbered(Path(name) / "data", counts)
        try:
            first = StreamingDataset(folder, rank=0, world_size=ranks, **options)
        except PlanError as error:
            size = options["batch"].samples if options["batch"] else 1
            assert options["tail"] == "drop", error  # noqa: PT017  (either outcome is right, for its own reason)
            assert sum(counts) // size < ranks
            return
        plan = planned(first, epoch)
        assert sorted(n for batch in plan for n in batch) == list(range(sum(counts)))
        start = first.state_dict() | {"epoch": epoch}
        got = _read(folder, ranks, options, start)
        laid_out = by_position(got)
        assert numbers(laid_out) == _expected(plan, 0, ranks, options)
        if options["tail"] != "uneven":
            assert {len(items) for items in got} == {len(first)}
        for item in laid_out:
            texts = item.get("caption", item.get("txt"))
            assert texts is None or texts in ([f"text {n}" for n in numbers([item])[0]], f"text {item['cls']}")
        # Stop anywhere, go on elsewhere.
        steps = int(part * min(map(len, got)))
        position = steps * ranks
        state = json.loads(json.dumps(start | {"position": position}))
        if options["batch"] is not None and steps:
            assert got[-1][steps - 1]["__state__"] in (state, start | {"epoch": epoch + 1, "position": 0})
        try:
            rest = numbers(by_position(_read(folder, others, options, state)))
        except PlanError:
            assert options["tail"] == "drop"
            return
        assert rest == (_expected(plan, position, others, options) or rest)
        if not _expected(plan, position, others, options) and sum(counts):
            following = planned(StreamingDataset(folder, rank=0, world_size=others, **options), epoch + 1)
            assert rest == (_expected(following, 0, others, options) if position else [])
