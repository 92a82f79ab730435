"""One rank of the tests in test_ddp.py: reads datasets step by step with the other ranks, and writes down what it saw.

Started by torchrun with one argument, a JSON file with a list of cases; the log of a case goes to <name>-<rank>.jsonl
beside that file, a line for each step and one for the end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import timedelta
from multiprocessing import set_forkserver_preload
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from streaming import FixedBatch, StreamingDataset, StreamingLoader


def main(cases: Path) -> None:
    set_forkserver_preload(["torch", "streaming.dataset"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    for case in json.loads(cases.read_text()):
        with (cases.parent / f"{case['name']}-{dist.get_rank()}.jsonl").open("w") as log:
            for line in read(case):
                log.write(json.dumps(line) + "\n")
    dist.destroy_process_group()


def read(case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dataset = StreamingDataset(
        case["source"],
        batch=FixedBatch(case["batch"]) if case["batch"] else None,
        shuffle=True,
        seed=case["seed"],
        tail=case["tail"],
    )
    loader: Any = dataset
    if case["loader"] == "streaming":
        loader = StreamingLoader(dataset, workers=case["workers"])
    elif case["loader"] == "torch":
        # Not fork, torch's default here: a rank has threads of its process group, and a child that is forked while one
        # of them holds a lock waits for it for ever (seen once in some thousands of workers).
        start = "forkserver" if case["workers"] else None
        loader = DataLoader(dataset, batch_size=None, num_workers=case["workers"], multiprocessing_context=start)
    state = case["state"]
    if state is not None:
        (loader if case["loader"] == "streaming" else dataset).load_state_dict(state)
    epoch, position = (state["epoch"], state["position"]) if state else (0, 0)
    done = 0
    while epoch < case["epochs"] and done != case["stop"]:
        for item in loader:
            in_step(1)
            keys = item["__key__"] if case["batch"] else [item["__key__"]]
            again = bool(torch.as_tensor(item.get("__repeat__", False)).any())
            yield {"epoch": epoch, "position": position + rank, "keys": keys, "again": again, "len": len(loader)}
            state = item.get("__state__")
            position, done = position + ranks, done + 1
            if done == case["stop"]:
                break
        else:
            in_step(-1)  # a rank that still has a batch now would be in the other call, and both would see it
            epoch, position = epoch + 1, 0
    if case["loader"] == "streaming":
        state = loader.state_dict()
        loader.close()
    yield {"state": state, "steps": done}


def in_step(value: int) -> None:
    """Meet the other ranks, and make sure that all of them do the same."""
    total = torch.tensor([value])
    dist.all_reduce(total)
    if int(total) != value * dist.get_world_size():
        raise SystemExit(f"rank {dist.get_rank()}: the ranks have unequal steps")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
