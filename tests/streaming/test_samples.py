"""From bytes to finished samples, and errors that say which one it was."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from photos import jpeg
from reading import Unpicklable, write_samples

from shardwriter.errors import StoreError
from streaming import DecodeError, FieldMissing, TooManySkipped, TransformError
from streaming.catalog import open_catalog
from streaming.choice import FieldChoice
from streaming.cut import RawSample
from streaming.decode import Decoders
from streaming.fetch import Fetcher
from streaming.image import Framing, decode_image
from streaming.plan import SampleGenerators, SampleRefs
from streaming.samples import SampleMaker, Skips
from streaming.transforms import RandomFlip, RandomResizedCrop

JPEG = jpeg(40, 60)
MEMBERS = [
    ("a.cls", b"1"), ("a.txt", b"one"), ("a.jpg", JPEG),
    ("b.cls", b"2"), ("b.txt", b"two"), ("b.jpg", JPEG),
    ("c.cls", b"x"), ("c.txt", b"three"), ("c.jpg", JPEG),
    ("d.cls", b"4"), ("d.png", JPEG),
]  # fmt: skip
GENERATORS = SampleGenerators(seed=3, epoch=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four samples: two whole, one with a class that is no number, one without text and with another image field."""
    return write_samples(tmp_path_factory.mktemp("samples") / "data", MEMBERS)


@pytest.fixture
def fetcher(folder: Path) -> Iterator[Fetcher]:
    """What reads them."""
    with Fetcher(open_catalog(folder)) as found:
        yield found


def _maker(fetcher: Fetcher, fields: Any = None, decode: Any = True, transform: Any = None, **options: Any) -> Any:
    generators = options.pop("generators", GENERATORS)
    return SampleMaker(fetcher, FieldChoice(fields), Decoders(decode), transform, generators, **options)


def _refs(*indices: int) -> SampleRefs:
    return SampleRefs(np.zeros(len(indices), np.int64), np.array(indices, np.int64))


def _raw(fetcher: Fetcher, *indices: int) -> list[RawSample]:
    return fetcher.fetch(_refs(*indices))


def test_a_sample(fetcher: Fetcher, folder: Path) -> None:
    """Key, URL and decoded fields under the names that were chosen."""
    [raw] = _raw(fetcher, 1)
    sample, error = _maker(fetcher, {"image": "png;jpg", "label": "cls"}).attempt(raw)
    assert error is None
    assert list(sample) == ["__key__", "__url__", "image", "label"]
    assert (sample["__key__"], sample["__url__"], sample["label"]) == ("b", f"{folder}/shard-000.tar", 2)
    assert torch.equal(sample["image"], decode_image(JPEG))


def test_images_go_to_their_places(fetcher: Fetcher) -> None:
    """Each image is framed and written into its place; other fields have none."""
    places: dict[str, torch.Tensor] = {}

    def place(name: str) -> torch.Tensor:
        places[name] = torch.zeros((3, 16, 16), dtype=torch.uint8)
        return places[name]

    [raw] = _raw(fetcher, 0)
    sample, _ = _maker(fetcher, {"image": "jpg", "txt": "txt"}).attempt(raw, Framing((16, 16)), place)
    assert sample["image"] is places.pop("image")
    assert not places
    assert torch.equal(sample["image"], decode_image(JPEG, Framing((16, 16))))


def _broken(sample: dict[str, Any], rng: Any) -> Any:
    raise Unpicklable(1, 2)


def _nothing(sample: dict[str, Any], rng: Any) -> Any:
    return None


@pytest.mark.parametrize(
    ("index", "options", "kind", "field", "text"),
    [
        (2, {}, DecodeError, "cls", "x"),
        (3, {"fields": ["cls", "txt"]}, FieldMissing, "txt", "it has cls, png"),
        (0, {"transform": _broken}, TransformError, None, "1 and 2"),
        (0, {"transform": _nothing}, TransformError, None, "returned NoneType, not a dict"),
        (0, {"decode": {"jpg": lambda data: data.absent}}, TransformError, "jpg", "no attribute 'absent'"),
    ],
)
def test_errors_say_where(
    fetcher: Fetcher, folder: Path, index: int, options: dict[str, Any], kind: Any, field: str | None, text: str
) -> None:
    """An error names shard, key and field, and keeps its text; where samples are skipped it is given, not raised."""
    [raw] = _raw(fetcher, index)
    with pytest.raises(kind, match=text) as caught:
        _maker(fetcher, **options).attempt(raw)
    sample, error = _maker(fetcher, on_error="skip", **options).attempt(raw)
    assert sample is None
    for each in (caught.value, error):
        assert type(each) is kind
        assert (each.shard, each.key, each.field) == (f"{folder}/shard-000.tar", "abcd"[index], field)


def test_errors_of_the_store_are_never_skipped(fetcher: Fetcher) -> None:
    """What is not the sample's fault is raised, whatever is asked for; so are interrupts."""

    def transform(sample: Any, rng: Any) -> Any:
        raise errors.pop()

    errors: list[BaseException] = [KeyboardInterrupt(), StoreError("unreachable")]
    maker = _maker(fetcher, transform=transform, on_error="skip")
    [raw] = _raw(fetcher, 0)
    with pytest.raises(StoreError, match="unreachable"):
        maker.attempt(raw)
    with pytest.raises(KeyboardInterrupt):
        maker.attempt(raw)


def test_a_transform_may_leave_out_the_key(fetcher: Fetcher) -> None:
    """A new dict without a key gets it back; one with another keeps that."""
    [raw] = _raw(fetcher, 0)
    assert _maker(fetcher, transform=lambda s, rng: {"n": s["cls"]}).attempt(raw)[0] == {"n": 1, "__key__": "a"}
    assert _maker(fetcher, transform=lambda s, rng: {"__key__": "mine"}).attempt(raw)[0] == {"__key__": "mine"}


def test_generators_belong_to_samples(fetcher: Fetcher) -> None:
    """What a transform draws is a function of seed, epoch and sample; crops and steps draw from generators of their
    own, so that one does not change what the others draw.
    """
    first, second = _raw(fetcher, 0, 1)
    drawing = _maker(fetcher, transform=lambda s, rng: {"n": rng.random()})
    numbers = [drawing.attempt(raw)[0]["n"] for raw in (first, second, first)]
    assert numbers[0] == numbers[2] != numbers[1]
    other = _maker(
        fetcher,
        transform=lambda s, rng: {"n": rng.random()},
        steps=(RandomResizedCrop(8), RandomFlip()),
        step_generators=SampleGenerators(3, 1, "image"),
        crops=SampleGenerators(3, 1, "crop"),
    )
    assert other.attempt(first)[0]["n"] == numbers[0]
    next_epoch = _maker(fetcher, transform=drawing.transform, generators=SampleGenerators(3, 2))
    assert next_epoch.attempt(first)[0]["n"] != numbers[0]


def test_random_crops_of_the_batch(fetcher: Fetcher) -> None:
    """Where crops are random, their place is the sample's own; without a framing there is none to draw."""
    first, second = _raw(fetcher, 0, 1)
    maker = _maker(fetcher, ["jpg"], crops=SampleGenerators(3, 1, "crop"))
    images = [maker.attempt(raw, Framing((40, 20)))[0]["jpg"] for raw in (first, second, first)]
    assert torch.equal(images[0], images[2])
    assert not torch.equal(images[0], images[1])  # the same photo, cut elsewhere
    assert torch.equal(maker.attempt(first)[0]["jpg"], decode_image(JPEG))


def test_steps_are_done_while_decoding(fetcher: Fetcher) -> None:
    """A flip that always happens mirrors what is decoded."""
    [raw] = _raw(fetcher, 0)
    maker = _maker(fetcher, ["jpg"], steps=(RandomFlip(1.0),), step_generators=SampleGenerators(3, 1, "image"))
    assert torch.equal(maker.attempt(raw)[0]["jpg"], decode_image(JPEG).flip(-1))


def test_columns(fetcher: Fetcher) -> None:
    """Field by field the values are those of the samples; what is out of the ordinary (a field that some lack, a value
    that can't be decoded) gives none, where it matters.
    """
    maker = _maker(fetcher, {"label": "cls", "txt": "txt"})
    found = maker.columns(_refs(1, 0, 1))
    assert found is not None
    cut, columns = found
    assert cut.keys == ["b", "a", "b"]
    assert {name: list(values) for name, values in columns.items()} == {
        "label": [2, 1, 2],
        "txt": ["two", "one", "two"],
    }
    assert maker.columns(_refs(0, 2)) is None
    assert maker.columns(_refs(0, 3)) is None
    assert _maker(fetcher, decode=False).columns(_refs(0, 3)) is None
    some = _maker(fetcher, ["cls"], False).columns(_refs(0, 2, 3))
    assert list(some[1]["cls"]) == [b"1", b"x", b"4"]  # the field that sample 3 lacks is not asked for


def test_skips(caplog: pytest.LogCaptureFixture) -> None:
    """Skipped samples are counted; the first ten are kept and logged with their reasons; one above the limit is an
    error with the last reason.
    """
    skips = Skips(limit=12)
    with caplog.at_level(logging.WARNING, "shardstream"):
        skips.add([DecodeError(f"number {i}") for i in range(12)])
    assert skips.count == 12
    assert len(skips.examples) == len(caplog.records) == 10
    assert "number 0" in skips.examples[0]
    skips.add([])
    with pytest.raises(TooManySkipped, match=r"more than 12 samples were skipped; the last: .*number 13.*skip_limit"):
        skips.add([DecodeError("number 13"), DecodeError("number 14")])
