"""Ray Data: Parquet files, read and decoded by its tasks on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from .common import BATCH, DECODERS, PER_SHARD, Again, samples

MODULES = ["torch", "PIL.Image", "ray.data", "pyarrow.parquet"]


def write(folder: str, out: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    Path(out).mkdir(parents=True, exist_ok=True)
    schema = pa.schema({"__key__": pa.string(), "jpg": pa.binary(), "txt": pa.string()})
    rows, number = samples(folder), 0
    while some := list(islice(rows, PER_SHARD)):
        table = pa.Table.from_pylist(some, schema=schema)
        parquet.write_table(table, f"{out}/part-{number:06d}.parquet", compression="none", row_group_size=4 * BATCH)
        number += 1


def _dataset(data: str) -> Any:
    import ray

    if not ray.is_initialized():
        cores = len(os.sched_getaffinity(0))
        ray.init(num_cpus=cores, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    return ray.data.read_parquet(data)


def raw(data: str) -> Any:
    return Again(_dataset(data).iter_rows)


def batches(data: str, decoder: str = "pillow") -> Iterator[dict[str, Any]]:
    """Ray has its own processes, one for each core."""
    decoded = _dataset(data).map_batches(partial(_decoded, decoder), batch_size=BATCH)
    yield from decoded.iter_torch_batches(batch_size=BATCH, collate_fn=_tensors)


def start(data: str) -> Iterator[Any]:
    return batches(data)


def _decoded(decoder: str, rows: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    return rows | {"jpg": np.stack([DECODERS[decoder](row).numpy() for row in rows["jpg"]])}


def _tensors(rows: dict[str, Any]) -> dict[str, Any]:
    """Text can't be a tensor, so the default would refuse it."""
    import torch

    return rows | {"jpg": torch.as_tensor(rows["jpg"])}
