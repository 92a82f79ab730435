"""Decoders by field name, the user's own, and what is never run."""

from __future__ import annotations

import gzip
import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from reading import Unpicklable, write_samples

from streaming import DecodeError, PlanError, StreamingDataset, TransformError
from streaming.decode import Decoders, guarded
from streaming.image import Framing


def _png(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(file, "PNG")
    return file.getvalue()


class _Bomb:
    """Unpickling it makes a file."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._mark),)


def test_by_name() -> None:
    """Each kind of field is decoded as its name says, in any folder of names; unknown ones stay bytes."""
    decoders = Decoders(True)
    assert decoders.decode("txt", "Grüße".encode()) == "Grüße"
    assert decoders.decode("cls", b" 7\n") == 7
    assert decoders.decode("left.meta.json", b'{"a": [1]}') == {"a": [1]}
    assert decoders.decode("mp4", b"\0\1") == b"\0\1"
    assert decoders.decode("txt.gz", gzip.compress(b"text")) == "text"
    array = io.BytesIO()
    np.save(array, np.arange(6).reshape(2, 3))
    assert decoders.decode("npy", array.getvalue()).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("field", ["png", "jpg", "left.jpeg", "seg.png", "webp"])
def test_images(field: str) -> None:
    """Image fields become uint8 [3, h, w], or the size that is asked for."""
    assert Decoders(True).decode(field, _png(5, 4)).shape == (3, 4, 5)
    image = Decoders(True).decode(field, _png(5, 4), Framing((2, 3)))
    assert image.shape == (3, 2, 3)
    assert image.dtype == torch.uint8


def test_no_decoding() -> None:
    """False keeps the bytes of every field."""
    assert Decoders(False).decode("cls", b"7") == b"7"
    assert Decoders(False).decode("pkl", b"x") == b"x"


def test_the_users_own_decoders() -> None:
    """A dict goes before the names: whole name first, then last part; None keeps bytes; the rest is decoded by name."""
    decoders = Decoders({"jpg": len, "left.jpg": bytes.upper, "txt": None, "npy": lambda data: "mine"})
    assert decoders.decode("jpg", b"four") == 4
    assert decoders.decode("right.jpg", b"four") == 4
    assert decoders.decode("left.jpg", b"four") == b"FOUR"
    assert decoders.decode("txt", b"x") == decoders.decode("a.txt", b"x") == b"x"
    assert decoders.decode("npy", b"") == "mine"
    assert decoders.decode("cls", b"1") == 1


@pytest.mark.parametrize("field", ["pkl", "pickle", "pyd", "pth", "pt", "left.pkl", "pkl.gz"])
def test_pickles_are_refused_and_not_run(tmp_path: Path, field: str) -> None:
    """A pickle is an error with a hint; what it would run does not run."""
    payload = pickle.dumps(_Bomb(tmp_path / "MARK"))
    data = gzip.compress(payload) if field.endswith("gz") else payload
    with pytest.raises(DecodeError, match=r"runs code.*decode=") as caught:
        Decoders(True).decode(field, data)
    assert caught.value.hint is not None
    assert not (tmp_path / "MARK").exists()


def test_pickles_inside_arrays_are_not_run(tmp_path: Path) -> None:
    """An object array in .npy or .npz is refused, and nothing in it runs."""
    objects = np.array([_Bomb(tmp_path / "MARK")], dtype=object)
    for field, save in (("npy", np.save), ("npz", np.savez)):
        file = io.BytesIO()
        save(file, objects)
        with pytest.raises(DecodeError):
            Decoders(True).decode(field, file.getvalue())
    assert not (tmp_path / "MARK").exists()


def test_whole_datasets_run_nothing_either(tmp_path: Path) -> None:
    """Reading a shard with a pickle in it raises with shard, key and field; naming a decoder for it reads it."""
    members = [("a.txt", b"x"), ("a.pkl", pickle.dumps(_Bomb(tmp_path / "MARK")))]
    folder = write_samples(tmp_path / "data", members)
    with pytest.raises(DecodeError) as caught:
        list(StreamingDataset(folder, threads=0))
    assert (caught.value.key, caught.value.field) == ("a", "pkl")
    assert caught.value.shard == f"{folder}/shard-000.tar"
    assert [s["txt"] for s in StreamingDataset(folder, threads=0, fields=["txt"])] == ["x"]
    assert not (tmp_path / "MARK").exists()
    list(StreamingDataset(folder, threads=0, decode={"pkl": pickle.loads}))
    assert (tmp_path / "MARK").exists()


def _fails(data: bytes) -> None:
    raise Unpicklable(3, 4)


def test_errors_of_the_users_decoder_can_travel(tmp_path: Path) -> None:
    """What a user's decoder raises, also what pickle can't copy, becomes an error that keeps its text and names shard,
    key and field, before and behind a pickle.
    """
    folder = write_samples(tmp_path / "data", [("a.left.bin", b"x")])
    with pytest.raises(TransformError, match=r"_fails\(\) raised Unpicklable: 3 and 4") as caught:
        list(StreamingDataset(folder, threads=0, decode={"bin": _fails}))
    assert isinstance(caught.value.__cause__, Unpicklable)
    copied = pickle.loads(pickle.dumps(caught.value))
    for error in (caught.value, copied):
        assert (error.key, error.field, error.shard) == ("a", "left.bin", f"{folder}/shard-000.tar")
        assert "3 and 4" in str(error)


def test_errors_of_the_tree_pass() -> None:
    """A DecodeError that the user raises is not wrapped; interrupts are not caught."""

    def raising(error: BaseException) -> None:
        raise error

    with pytest.raises(DecodeError, match="mine"):
        guarded(raising, DecodeError("mine"))
    with pytest.raises(KeyboardInterrupt):
        guarded(raising, KeyboardInterrupt())


@pytest.mark.parametrize(
    ("field", "data"), [("cls", b"x"), ("txt", b"\xff"), ("json", b"{"), ("npy", b"no"), ("jpg", b""), ("txt.gz", b"x")]
)
def test_bytes_that_are_not_what_the_field_says(field: str, data: bytes) -> None:
    """Damaged values are DecodeErrors."""
    with pytest.raises(DecodeError):
        Decoders(True).decode(field, data)


def test_views() -> None:
    """decode="views" keeps every field as it is stored, as False does; other words are refused."""
    decoders = Decoders("views")
    data = memoryview(b"7")
    assert decoders.decode("cls", data) is data
    assert decoders.views
    assert decoders.none
    assert not Decoders(False).views
    assert not Decoders({"txt": None}).none
    with pytest.raises(PlanError, match=r"decode='bytes'.*'views'"):
        Decoders("bytes")  # type: ignore[arg-type]


def test_which_fields_are_images() -> None:
    """A field is an image where its name says so and nothing else decodes it; those take views as well as bytes."""
    decoders = Decoders({"left.jpg": None, "webp": len})
    assert decoders.is_image("jpg")
    assert decoders.is_image("right.jpg")
    assert not any(decoders.is_image(field) for field in ("left.jpg", "webp", "a.webp", "txt", "bin"))
    assert not Decoders(False).is_image("jpg")
    assert torch.equal(decoders.decode("png", memoryview(_png(5, 4))), decoders.decode("png", _png(5, 4)))


def test_images_are_written_where_they_are_wanted() -> None:
    """A place is filled and given back; a field that is no image has no use for one."""
    place = torch.zeros((3, 2, 3), dtype=torch.uint8)
    assert Decoders(True).decode("png", _png(5, 4), Framing((2, 3)), place) is place
    assert place[0].min() > 200
    assert Decoders(True).decode("cls", b"7", Framing((2, 3)), place) == 7


@pytest.mark.parametrize(
    ("decode", "own"),
    [(True, False), (False, True), ("views", True), ({}, False), ({"txt": len}, False), ({"jpg": len}, True),
     ({"left.png": None}, True)],
)  # fmt: skip
def test_who_decodes_images(decode: Any, own: bool) -> None:
    """Whether all images are decoded by name, so that crops and flips can be part of it."""
    assert Decoders(decode).own_images == own


@pytest.mark.parametrize(
    ("decode", "fields", "light"),
    [
        (True, ["txt", "cls", "json", "npy", "bin"], True),
        (True, ["txt", "left.jpg"], False),
        (True, [], True),
        (False, ["jpg", "txt"], True),
        ("views", ["jpg"], True),
        ({"jpg": None}, ["jpg", "txt"], True),
        ({"jpg": None}, ["png"], False),
        ({"txt": len}, ["jpg.txt"], False),
    ],
)
def test_what_takes_little_work(decode: Any, fields: list[str], light: bool) -> None:
    """Decoding images and calling functions of the user's is work for threads; all else is not."""
    assert Decoders(decode).light(fields) == light
