"""mosaicml-streaming: MDS files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .common import BATCH, DECODERS, Again, loader, samples

MODULES = ["torch", "PIL.Image", "streaming"]
COLUMNS = {"__key__": "str", "jpg": "bytes", "txt": "str"}


def write(folder: str, out: str) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=out, columns=COLUMNS) as writer:
        for sample in samples(folder):
            writer.write(sample)


def raw(data: str, by_number: bool = False) -> Any:
    """Iterated over, which a thread of its own prepares, or indexed, which is quicker on local files."""
    from streaming import StreamingDataset

    dataset = StreamingDataset(local=data, shuffle=False, batch_size=BATCH)
    return Again(lambda: map(dataset.__getitem__, range(len(dataset)))) if by_number else dataset


def batches(data: str, workers: int = 0, decoder: str = "pillow") -> Any:
    return _loader(data, workers, decoder)


def start(data: str) -> Any:
    return batches(data)


def save_state(data: str, at: int, path: str) -> None:
    """The state of StreamingDataLoader, with the place of a run that has taken `at` batches of the first epoch."""
    state = _loader(data, 0, "pillow").state_dict()
    Path(path).write_text(json.dumps(state | {"epoch": 0, "sample_in_epoch": at * BATCH}))


def resume(data: str, at: int, path: str) -> Any:  # noqa: ARG001 (some sides need it)
    resumed = _loader(data, 0, "pillow")
    resumed.load_state_dict(json.loads(Path(path).read_text()))
    return iter(resumed)


def _loader(data: str, workers: int, decoder: str) -> Any:
    from streaming import StreamingDataLoader, StreamingDataset

    decode = DECODERS[decoder]

    class Decoded(StreamingDataset):  # type: ignore[misc]
        """Transforms go into __getitem__, as its guide has them."""

        def __getitem__(self, at: Any) -> Any:
            sample = super().__getitem__(at)
            return sample | {"jpg": decode(sample["jpg"])}

    return loader(Decoded(local=data, shuffle=False, batch_size=BATCH), workers, kind=StreamingDataLoader)
