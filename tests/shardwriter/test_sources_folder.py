"""A folder of files as a source."""

from __future__ import annotations

import os
import pickle
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwriter.errors import NameRefused, SourceError
from shardwriter.sources import FileRef, folder


def make(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode("utf-8", "surrogateescape"))
    return root


def keys(root: Path, **options: list[str]) -> list[str]:
    return [record.key for record in folder(root, **options)]


def test_files_that_share_a_stem_are_one_sample(tmp_path: Path) -> None:
    """The key is the path up to the first dot of the file's name, the field all that follows, in lower case."""
    make(tmp_path, "a/1.jpg", "a/1.seg.png", "a/1.TXT", "2.jpeg", "v1.5/3.jpg")
    found = {r.key: {f: Path(ref.path).read_bytes() for f, ref in r.fields.items()} for r in folder(tmp_path)}
    assert found == {
        "2": {"jpeg": b"2.jpeg"},
        "a/1": {"jpg": b"a/1.jpg", "seg.png": b"a/1.seg.png", "txt": b"a/1.TXT"},
        "v1.5/3": {"jpg": b"v1.5/3.jpg"},
    }


def test_a_photo_folder_with_junk(tmp_path: Path) -> None:
    """Files of the system, hidden files and notes are no samples, and each is counted by reason."""
    make(tmp_path, "img_2.jpg", "img_10.jpg", "sub/img_1.jpeg", "IMG_3.JPG")
    make(tmp_path, ".DS_Store", "Thumbs.db", "desktop.ini", "._img_2.jpg", "notes.md", "README", "a.", ".git/x.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    skipped: Counter[str] = Counter()
    assert [r.key for r in folder(tmp_path).records(skipped)] == ["IMG_3", "img_10", "img_2", "sub/img_1"]
    assert skipped == {
        "hidden": 3, "system files": 2, "without an extension": 2, "notes": 1, "neither files nor folders": 1,
    }  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    st.sets(
        st.lists(st.text("aB-/0~\u00e9", min_size=1, max_size=3), min_size=1, max_size=3).map("/".join), max_size=10
    )
)
def test_samples_come_in_code_point_order_of_their_keys(
    tmp_path_factory: pytest.TempPathFactory, names: set[str]
) -> None:
    """Whatever folders and files there are, keys come sorted, once each, and the same the second time."""
    root = tmp_path_factory.mktemp("order")
    wanted = {"/".join(part for part in name.split("/") if part) for name in names} - {""}
    order = sorted(wanted)
    random.Random(len(order)).shuffle(order)
    make(root, *(f"{name}.txt" for name in order))
    assert keys(root) == sorted(wanted) == keys(root)


def test_fields_filter_files_and_must_be_there(tmp_path: Path) -> None:
    """Files of other fields are passed over, and a sample that lacks a field is named with its file."""
    make(tmp_path, "a.jpg", "a.txt", "a.json", "b.json")
    skipped: Counter[str] = Counter()
    (record,) = folder(tmp_path, fields=["txt", "jpg"]).records(skipped)
    assert sorted(record.fields) == ["jpg", "txt"]
    assert skipped == {"of other fields": 2}
    make(tmp_path, "c.jpg")
    with pytest.raises(SourceError, match=r"sample c has .*c\.jpg but no file for field 'txt'"):
        keys(tmp_path, fields=["txt", "jpg"])


def test_notes_are_read_when_asked_for(tmp_path: Path) -> None:
    """`fields=["md"]` makes *.md files samples."""
    make(tmp_path, "a.md")
    assert keys(tmp_path, fields=["md"]) == ["a"]


def test_senseless_fields_are_refused(tmp_path: Path) -> None:
    """A text in the place of a list, and names that can't be fields, are refused at once."""
    with pytest.raises(SourceError, match=r"pass \['jpg'\]"):
        folder(tmp_path, fields="jpg")
    with pytest.raises(NameRefused):
        folder(tmp_path, fields=["JPG"])


def test_two_files_for_one_field_are_named(tmp_path: Path) -> None:
    """`1.jpg` and `1.JPG` would both be field jpg: an error that names both files."""
    make(tmp_path, "1.jpg", "1.JPG")
    with pytest.raises(SourceError, match=r"1\.(jpg|JPG) and .*1\.(jpg|JPG) are both field 'jpg' of sample 1"):
        keys(tmp_path)


@pytest.mark.parametrize(
    "name", ["a b.j pg", "a.x\u00e9", "tab\there.jpg", "back\\slash.jpg", "__x__/a.jpg", "a..jpg", "bad\udcff.jpg"]
)
def test_names_that_shards_can_not_hold_are_named(tmp_path: Path, name: str) -> None:
    """A file whose key or field would not be read back is an error with its path and a cure."""
    make(tmp_path, "fine.jpg", name)
    with pytest.raises(SourceError, match=r"file '.*can't be stored.*rename it"):
        keys(tmp_path)


def test_links_are_followed(tmp_path: Path) -> None:
    """Links to files and to folders count as what they point to."""
    make(tmp_path / "real", "deep/a.jpg")
    (tmp_path / "view").mkdir()
    (tmp_path / "view" / "sub").symlink_to(tmp_path / "real" / "deep")
    (tmp_path / "view" / "b.jpg").symlink_to(tmp_path / "real" / "deep" / "a.jpg")
    assert keys(tmp_path / "view") == ["b", "sub/a"]


def test_links_that_lead_nowhere_or_in_circles_are_named(tmp_path: Path) -> None:
    """A dead link is lost data, and a circle would never end: both are errors."""
    make(tmp_path / "dead", "a.jpg")
    (tmp_path / "dead" / "b.jpg").symlink_to("gone.jpg")
    with pytest.raises(SourceError, match=r"b\.jpg leads nowhere"):
        keys(tmp_path / "dead")
    make(tmp_path / "circle", "x/a.jpg")
    (tmp_path / "circle" / "x" / "up").symlink_to(tmp_path / "circle")
    with pytest.raises(SourceError, match="up leads back"):
        keys(tmp_path / "circle")


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """A wrong path is an error and an empty folder is none."""
    with pytest.raises(SourceError, match="there is no folder"):
        keys(tmp_path / "gone")
    assert keys(tmp_path) == []


def test_the_description_is_small_portable_and_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be pickled, compared and printed, and means the same folder wherever it is used."""
    make(tmp_path / "data", "a.jpg")
    monkeypatch.chdir(tmp_path)
    source = folder("data", fields=["jpg"])
    monkeypatch.chdir("/")
    again = pickle.loads(pickle.dumps(source))
    assert again == source == folder(tmp_path / "data", fields=["jpg"])
    assert repr(source) == repr(folder(tmp_path / "data", fields=["jpg"]))
    assert [record.key for record in again] == ["a"]


def test_a_file_that_changes_is_named(tmp_path: Path) -> None:
    """Reading a file that is gone, that grew, or that is a folder is an error with its path."""
    make(tmp_path, "a.jpg")
    file = FileRef(str(tmp_path / "a.jpg"))
    assert file.read(file.size()) == b"a.jpg"
    with pytest.raises(SourceError, match=r"a\.jpg had 4 bytes .* has 5 now"):
        file.read(4)
    (tmp_path / "a.jpg").unlink()
    for call in (file.size, lambda: file.read(5)):
        with pytest.raises(SourceError, match=r"a\.jpg can't be read: No such file"):
            call()
    with pytest.raises(SourceError, match="no regular file"):
        FileRef(str(tmp_path)).size()
