"""Train a small image classifier on shards, on any number of ranks, and go on from a checkpoint on any other number.

    torchrun --standalone --nproc-per-node 2 examples/train_ddp.py --data shards --out run --stop-after 40
    torchrun --standalone --nproc-per-node 1 examples/train_ddp.py --data shards --out run --resume

The shards hold images (`jpg`) with captions (`txt`); the targets are the words of the captions, hashed to 64 classes.
"""

import argparse
import json
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from streaming import FixedBatch, StreamingDataset, StreamingLoader
from streaming.transforms import Normalize, RandomFlip, RandomResizedCrop

WORDS = 64


def add_target(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:  # noqa: ARG001
    """The words of the caption as a target.  `rng`, not needed here, belongs to this sample in this epoch."""
    sample["target"] = torch.zeros(WORDS)
    sample["target"][[zlib.crc32(word.encode()) % WORDS for word in sample["txt"].lower().split()]] = 1.0
    return sample


def make_model() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.GroupNorm(4, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64 * 16, WORDS))


def train(args: argparse.Namespace) -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = nn.parallel.DistributedDataParallel(make_model().to(args.device))
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    augment = [RandomResizedCrop(scale=(0.6, 1.0)), RandomFlip(), add_target]
    dataset = StreamingDataset(
        args.data, batch=FixedBatch(args.batch, size=64), shuffle=True, seed=args.seed, transform=augment
    )
    normalize = Normalize(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    if rank == 0:
        print(dataset.plan, flush=True)

    checkpoint = args.out / "checkpoint.pt"
    done = 0
    with StreamingLoader(
        dataset, workers=args.workers, device=args.device, device_transform=normalize, continuous=True
    ) as loader:
        if args.resume:
            saved = torch.load(checkpoint, map_location=args.device, weights_only=True)
            model.module.load_state_dict(saved["model"])
            optimiser.load_state_dict(saved["optimiser"])
            loader.load_state_dict(saved["loader"])
        for epoch in range(loader.state_dict()["epoch"], args.epochs):
            position = loader.state_dict()["position"] + rank
            steps, total, start = 0, torch.zeros((), device=args.device), 0.0
            for batch in loader:
                start = start or time.perf_counter()
                log(args.out / f"samples-{rank}.jsonl", epoch=epoch, position=position, keys=batch["__key__"])
                loss = nn.functional.binary_cross_entropy_with_logits(model(batch["jpg"]), batch["target"])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                total += loss.detach()
                position, steps, done = position + ranks, steps + 1, done + 1
                if done == args.stop_after:
                    break
            dist.all_reduce(total)
            if rank == 0:
                rate = max(0, steps - 1) * ranks * args.batch / (time.perf_counter() - start) if start else 0.0
                mean = float(total) / max(1, steps * ranks)
                log(args.out / "epochs.jsonl", epoch=epoch, ranks=ranks, steps=steps, loss=mean, samples_per_s=rate)
                print(f"epoch {epoch}: {steps} steps, loss {mean:.4f}, {rate:,.0f} samples/s", flush=True)
                print(loader.stats(), flush=True)
                state = {"model": model.module.state_dict(), "optimiser": optimiser.state_dict()}
                torch.save(state | {"loader": loader.state_dict()}, checkpoint)
            if done == args.stop_after:
                return


def log(path: Path, **line: Any) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder or URL of the shards")
    parser.add_argument("--out", required=True, type=Path, help="folder for the checkpoint and the logs")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32, help="samples of a rank's batch")
    parser.add_argument("--workers", type=int, default=2, help="reading processes of each rank")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--stop-after", type=int, help="stop after this many steps, as if the machine were taken away")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    if args.device == "cuda":
        torch.cuda.set_device(dist.get_node_local_rank())
    try:
        train(args)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
