"""Random numbers as a function of names."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.plan.keys import SampleGenerators, permutation, uniform, words

MASK = (1 << 64) - 1
SEEDS = st.integers() | st.sampled_from([0, -1, 2**63, 2**64, -(2**64), 2**200])
NAMES = st.lists(st.integers() | st.sampled_from(["shards", "block", "sample"]), max_size=4)


def philox(key: tuple[int, int], counter: int) -> list[int]:
    """Four words of Philox 4x64 with ten rounds, written down from the paper."""
    x = [counter >> 64 * i & MASK for i in range(4)]
    k0, k1 = key
    for _ in range(10):
        a, b = x[0] * 0xD2E7470EE14C6C93, x[2] * 0xCA5A826395121157
        x = [(b >> 64) ^ x[1] ^ k0, b & MASK, (a >> 64) ^ x[3] ^ k1, a & MASK]
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & MASK, (k1 + 0xBB67AE8584CAA73B) & MASK
    return x


def key_of(*names: object) -> tuple[int, int]:
    digest = hashlib.blake2b("/".join(map(str, names)).encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


@given(st.integers(0, 40), SEEDS, NAMES)
def test_words_are_philox_keyed_by_blake2b(n: int, seed: int, names: list[str | int]) -> None:
    """Words can be computed without numpy: they follow from the published algorithms alone."""
    stream = [word for block in range(1, 11) for word in philox(key_of(seed, *names), block)]
    assert words(n, seed, *names).tolist() == stream[:n]


def test_words_are_pinned() -> None:
    """A few words, as every release must give them."""
    assert words(2, 7, "epoch", 0).tolist() == [0xFF9D8D8AF7502029, 0x2C51900B8F98911E]
    assert words(1, -(2**70), "x").tolist() == [0x1FC4F5161FBBB9EF]


@given(st.integers(0, 40), st.integers(0, 40), SEEDS)
def test_words_do_not_depend_on_how_many_are_taken(few: int, more: int, seed: int) -> None:
    """The first words are the same however many are asked for."""
    assert words(few, seed, "a").tolist()[:more] == words(more, seed, "a").tolist()[:few]


def test_names_and_seeds_are_told_apart() -> None:
    """Seeds of any size and sign, and names in any order, lead to words of their own."""
    seeds = [0, 1, -1, 2**63, -(2**63), 2**64, 2**64 + 1, 2**128]
    names: list[tuple[str | int, ...]] = [("a",), ("b",), ("a", 1), (1, "a"), ("a", 1, 2), ("a", 12), ("a", -1)]
    first = {words(1, seed, *name).item() for seed in seeds for name in names}
    assert len(first) == len(seeds) * len(names)


@given(st.integers(0, 200), SEEDS)
def test_uniform_numbers_are_the_upper_53_bits(n: int, seed: int) -> None:
    """Each lies in [0, 1), and is the word's upper 53 bits exactly."""
    numbers = uniform(n, seed, "u").tolist()
    assert numbers == [(word >> 11) / 2**53 for word in words(n, seed, "u").tolist()]
    assert all(0 <= u < 1 for u in numbers)


@given(st.integers(0, 200), SEEDS)
def test_a_permutation_sorts_its_words(n: int, seed: int) -> None:
    """It holds each number once, in the order of the words."""
    order = permutation(n, seed, "p").tolist()
    drawn = words(n, seed, "p").tolist()
    assert order == sorted(range(n), key=lambda i: drawn[i])


def test_permutations_are_even() -> None:
    """Each of the 24 orders of four comes about as often as the others over 4,800 epochs."""
    seen = np.unique([permutation(4, 3, "shards", e) for e in range(4800)], axis=0, return_counts=True)[1]
    assert len(seen) == 24
    assert ((seen - 200) ** 2 / 200).sum() < 49.7  # chi-square, 23 degrees of freedom, 0.1 %


@given(SEEDS, st.integers(0, 2**70), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_a_sample_counts_from_its_own_place(seed: int, epoch: int, shard: int, index: int) -> None:
    """The generator of a sample starts at counter (0, 0, index, shard) of its epoch's key."""
    bits = SampleGenerators(seed, epoch).of(shard, index).bit_generator
    start = index << 128 | shard << 192
    assert bits.random_raw(4).tolist() == philox(key_of(seed, "sample", epoch), start + 1)


@pytest.mark.parametrize("integer", [int, np.int64, np.uint32])
def test_numpy_integers_name_the_same_sample(integer: type) -> None:
    """Places that come from an array are as good as Python's integers."""
    rngs = SampleGenerators(seed=1, epoch=2)
    assert rngs.of(integer(3), integer(4)).random() == rngs.of(3, 4).random()
