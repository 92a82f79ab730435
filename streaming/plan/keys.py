"""Random numbers as a function of names: the same on every machine, whatever was drawn before.

>>> uniform(2, 7, "epoch", 0).tolist() == uniform(2, 7, "epoch", 0).tolist()
True

The generator is Philox 4x64 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), keyed by a BLAKE2b
digest of seed and names.  Plans use its raw 64-bit words only, since numpy pins those for ever; the methods of
numpy.random.Generator may change between releases.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def _key(seed: int, *names: str | int) -> NDArray[np.uint64]:
    text = "/".join(str(part) for part in (seed, *names))
    return np.frombuffer(hashlib.blake2b(text.encode(), digest_size=16).digest(), dtype="<u8").astype(np.uint64)


def words(n: int, seed: int, *names: str | int) -> NDArray[np.uint64]:
    """`n` random 64-bit words that belong to (seed, names)."""
    return np.random.Philox(key=_key(seed, *names)).random_raw(n)


def uniform(n: int, seed: int, *names: str | int) -> NDArray[np.float64]:
    """`n` numbers, uniform in [0, 1), multiples of 2**-53."""
    return (words(n, seed, *names) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(n: int, seed: int, *names: str | int) -> NDArray[np.int64]:
    """A random order of 0 ... n - 1."""
    return np.argsort(words(n, seed, *names), kind="stable")


def phases(n: int, seed: int, epoch: int, *, mixed: bool) -> NDArray[np.float64]:
    """Where in their first interval `n` interleaved sequences begin: anywhere, or in its middle."""
    return uniform(n, seed, "phases", epoch) if mixed and n > 1 else np.full(n, 0.5)


class SampleGenerators:
    """Makes the generator that a transform gets: a function of (seed, epoch, sample), and of nothing else (C11).

    >>> rngs = SampleGenerators(seed=7, epoch=0)
    >>> rngs.of(shard=3, index=12).random() == rngs.of(shard=3, index=12).random()
    True
    """

    def __init__(self, seed: int, epoch: int, name: str = "sample") -> None:
        self._key: NDArray[Any] = _key(seed, name, epoch)

    def of(self, shard: int, index: int) -> np.random.Generator:
        """The generator of sample `index` of shard `shard`; each call makes it anew, at its start."""
        return np.random.Generator(np.random.Philox(key=self._key, counter=[0, 0, index, shard]))
