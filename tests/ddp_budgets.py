"""One rank of the tests in test_ddp_budgets.py: trains tiny models with the other ranks, on batches by budget.

Started by torchrun with one argument, a JSON file with a list of cases; the log of a case goes to <name>-<rank>.jsonl
beside that file, a line for each step and one for the end.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ddp_reader import in_step
from pictures import IMAGE
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from streaming import CostBudget, PixelBudget, StreamingDataset, StreamingLoader
from streaming.ragged import views

Batch = dict[str, Any]


class Images(nn.Module):
    """One number for each image of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(4, 1)

    def forward(self, batch: Batch) -> torch.Tensor:
        """[n] of the images of a dense, a padded or a packed batch."""
        if "image.offsets" in batch:
            found = [self.layers(image[None] / 255) for image in views(batch, "image")]
        elif "image.sizes" in batch:
            parts = zip(batch["image"], batch["image.sizes"].tolist(), strict=True)
            found = [self.layers(image[None, :, :h, :w] / 255) for image, (h, w) in parts]
        else:
            found = [self.layers(batch["image"] / 255)]
        return self.head(torch.cat(found))[:, 0]


class Features(nn.Module):
    """One number for each run of features of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 1)

    def forward(self, batch: Batch) -> torch.Tensor:
        """[n] of a padded batch."""
        return self.head(batch["feat.npy"].sum(dim=1) / batch["feat.npy.lengths"][:, None])[:, 0]


def main(cases: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    for case in json.loads(cases.read_text()):
        with (cases.parent / f"{case['name']}-{dist.get_rank()}.jsonl").open("w") as log:
            for line in train(case):
                log.write(json.dumps(line) + "\n")
    gc.collect()  # models are in cycles and hold the group, whose threads must end before the process does
    dist.destroy_process_group()


def train(case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Train for one epoch, or from a state to its end, or up to a step."""
    pixels = case["kind"] == "pixels"
    dataset = StreamingDataset(
        case["source"],
        batch=PixelBudget(**case["budget"]) if pixels else CostBudget(**case["budget"]),
        fields={"image": IMAGE, "cls": "cls"} if pixels else ["cls", "feat.npy"],
        shuffle=True,
        seed=case["seed"],
        tail=case["tail"],
        threads=1,
    )
    torch.manual_seed(0)
    model = DistributedDataParallel(Images() if pixels else Features())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    steps = 0
    with StreamingLoader(dataset, workers=0) as loader:
        if case["state"] is not None:
            loader.load_state_dict(case["state"])
        for batch in loader:
            loss = nn.functional.mse_loss(model(batch), batch["cls"] / 100)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            in_step(1)
            steps += 1
            again = bool(batch["__repeat__"].any()) if "__repeat__" in batch else False
            held = (
                batch["image" if pixels else "feat.npy"].numel() // 3
            )  # pixels of three colours, steps of three numbers
            yield {"numbers": batch["cls"].tolist(), "again": again, "held": held, "len": len(loader)}
            if steps == case["stop"]:
                break
        else:
            in_step(-1)  # a rank that still has a batch now would be in the other call, and both would see it
        yield {"state": loader.state_dict(), "steps": steps, "loss": loss.item(), "weights": weights(model)}


def weights(model: nn.Module) -> list[float]:
    """All that was learnt, as one list."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
