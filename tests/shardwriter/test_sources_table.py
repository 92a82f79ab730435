"""A table of captions and files as a source."""

from __future__ import annotations

import csv
import io
import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwriter.errors import SourceError
from shardwriter.sources import FileRef, Record, table

BY_NAME = {"filepath": "jpg", "caption": "txt"}


def put(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def fields(records: Any) -> list[dict[str, Any]]:
    return [dict(record.fields) for record in records]


def test_a_table_with_a_header(tmp_path: Path) -> None:
    """Columns are found by name, whatever their order; others are left out; keys are row numbers."""
    path = put(tmp_path / "list.csv", "id,caption,filepath\n7,zero,img_0.jpg\n8,one,sub/img_1.jpg\n")
    assert list(table(path, columns=BY_NAME)) == [
        Record("000000000", {"jpg": FileRef(f"{tmp_path}/img_0.jpg"), "txt": b"zero"}, where="list.csv line 2"),
        Record("000000001", {"jpg": FileRef(f"{tmp_path}/sub/img_1.jpg"), "txt": b"one"}, where="list.csv line 3"),
    ]


def test_a_table_without_a_header(tmp_path: Path) -> None:
    """Columns are named by position, and None passes one over."""
    path = put(tmp_path / "list.tsv", "a cat\tx\timg_0.jpg\na dog\ty\timg_1.jpg\n")
    found = fields(table(path, columns=["txt", None, "jpg"], root="/images"))
    assert found == [
        {"txt": b"a cat", "jpg": FileRef("/images/img_0.jpg")},
        {"txt": b"a dog", "jpg": FileRef("/images/img_1.jpg")},
    ]


def test_json_lines(tmp_path: Path) -> None:
    """One object a line; numbers and nested values go into integer and JSON fields."""
    rows = [
        {"file": "a.jpg", "text": "caf\u00e9\r\n", "n": 3, "extra": {"x": [1]}},
        {"file": "b.jpg", "text": "", "n": "4", "extra": None},
    ]
    path = put(tmp_path / "list.jsonl", "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n")
    source = table(path, columns={"file": "jpg", "text": "txt", "n": "cls", "extra": "json"})
    assert fields(source) == [
        {"jpg": FileRef(f"{tmp_path}/a.jpg"), "txt": "caf\u00e9\r\n".encode(), "cls": b"3", "json": b'{"x":[1]}'},
        {"jpg": FileRef(f"{tmp_path}/b.jpg"), "txt": b"", "cls": b"4", "json": b"null"},
    ]


def test_words_that_look_like_missing_values_are_words(tmp_path: Path) -> None:
    """Empty captions are empty texts; NA, null and nan are words; blanks around a caption stay."""
    captions = ["a red square", "", "NA", "null", "nan", "  padded  "]
    path = put(tmp_path / "list.csv", "filepath,caption\n" + "".join(f"img.jpg,{c}\n" for c in captions))
    assert [f["txt"].decode() for f in fields(table(path, columns=BY_NAME))] == captions


def test_a_byte_order_mark_and_crlf(tmp_path: Path) -> None:
    """An export of a spreadsheet has no mark in its first column name and no CR in its captions."""
    path = put(tmp_path / "bom.csv", b"\xef\xbb\xbffilepath,caption\r\nimg_0.jpg,zero\r\nimg_1.jpg,one\r\n")
    assert [f["txt"] for f in fields(table(path, columns=BY_NAME))] == [b"zero", b"one"]


def test_quoted_line_breaks_are_kept_and_lines_still_counted(tmp_path: Path) -> None:
    """A caption over two lines stays whole, and errors after it name the right line."""
    path = put(tmp_path / "list.csv", 'filepath,caption\na.jpg,"two\r\nlines, and a "" quote"\n\nb.jpg,x\nc.jpg\n')
    skipped: Counter[str] = Counter()
    records = table(path, columns=BY_NAME).records(skipped)
    assert next(records).fields["txt"] == b'two\r\nlines, and a " quote'
    assert next(records).where == "list.csv line 5"
    assert skipped == {"blank lines": 1}
    with pytest.raises(SourceError, match=r"list\.csv line 6: 1 columns, not 2: 'c\.jpg'"):
        next(records)


@pytest.mark.parametrize("columns", [BY_NAME, ["jpg", "txt"]])
def test_semicolons_are_recognised_in_the_error(tmp_path: Path, columns: Any) -> None:
    """A file with another delimiter quotes what was found and says what to pass; with it the file is read."""
    path = put(tmp_path / "semicolon.csv", "filepath;caption\nimg_0.jpg;zero\nimg_1.jpg;one\n")
    with pytest.raises(SourceError, match=r"filepath;caption.*pass delimiter=';'"):
        list(table(path, columns=columns))
    assert len(list(table(path, columns=columns, delimiter=";"))) >= 2


def test_a_wrong_column_lists_those_that_exist(tmp_path: Path) -> None:
    """The error names the column that is missing and all that are there."""
    path = put(tmp_path / "column.csv", "file,text\nimg_0.jpg,zero\n")
    with pytest.raises(SourceError, match=r"line 1: there is no column 'filepath', only \['file', 'text'\]"):
        list(table(path, columns=BY_NAME))
    lines = put(tmp_path / "column.jsonl", '{"file": "a.jpg", "text": "x"}\n')
    with pytest.raises(SourceError, match=r"line 1: there is no column 'filepath', only \['file', 'text'\]"):
        list(table(lines, columns=BY_NAME))


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("a.csv", "filepath,caption\na.jpg,x,y\n", "line 2: 3 columns, not 2"),
        ("a.csv", "filepath,caption,caption\n", "names a column twice"),
        ("a.csv", "", r"no column 'filepath', only \[\]"),
        ("a.csv", 'filepath,caption\na.jpg,"open\nb.jpg,x\n', "line 2: unexpected end of data"),
        ("a.csv", 'filepath,caption\na.jpg,"x"y\n', "line 2: "),
        ("a.csv", b"filepath,caption\na.jpg,caf\xe9\n", r"a\.csv is not UTF-8"),
        ("a.csv", "filepath,caption\n,x\n", "line 2: '' is no path"),
        ("a.csv", "filepath,caption\nhttps://x/a.jpg,x\n", "line 2: .*address, not a file.*download"),
        ("a.jsonl", '{"filepath": "a.jpg", "caption": "x"}\n{"filepath":\n', "line 2: this is not JSON"),
        ("a.jsonl", "[1]\n", "line 1: this is no JSON object but list"),
        ("a.jsonl", '{"filepath": "a.jpg", "caption": null}\n', "line 1: a value of type NoneType"),
        ("a.jsonl", '{"filepath": 3, "caption": "x"}\n', "line 1: 3 is no path"),
        ("a.jsonl", '{"filepath": "a.jpg", "caption": "\\ud800"}\n', "line 1: .*surrogate"),
        ("a.jsonl", b'{"filepath": "a.jpg", "caption": "\xe9"}\n', "not UTF-8"),
    ],
)
def test_damaged_tables_name_file_and_line(tmp_path: Path, name: str, text: str | bytes, match: str) -> None:
    """Whatever is wrong with a row, the error says where it is."""
    path = put(tmp_path / name, text)
    with pytest.raises(SourceError, match=match):
        list(table(path, columns=BY_NAME))


def test_a_missing_table_is_an_error(tmp_path: Path) -> None:
    """A path that leads nowhere is named."""
    for name in ("gone.csv", "gone.jsonl"):
        with pytest.raises(SourceError, match=f"{name} can't be read: No such file"):
            list(table(tmp_path / name, columns=BY_NAME))


def test_values_are_checked_against_their_fields(tmp_path: Path) -> None:
    """Integers are trimmed, JSON cells are kept as they stand, and what is neither is an error with line and field."""
    path = put(tmp_path / "a.tsv", ' 7 \t{"a":  1}\nx\t1\n')
    records = iter(table(path, columns=["cls", "json"]))
    assert dict(next(records).fields) == {"cls": b"7", "json": b'{"a":  1}'}
    with pytest.raises(SourceError, match=r"line 2: 'x' is no decimal integer .*field cls"):
        next(records)
    with pytest.raises(SourceError, match=r"line 1: this is not JSON .*field json"):
        list(table(put(tmp_path / "b.tsv", "3\t{\n"), columns=["cls", "json"]))


def test_keys_from_a_column(tmp_path: Path) -> None:
    """The values of a column become keys, by name or position; one that shards can't hold is an error with its line."""
    path = put(tmp_path / "a.csv", "id,caption\nx/1,one\n2,two\nv1.5,three\n")
    records = iter(table(path, columns={"caption": "txt"}, key="id"))
    assert [next(records).key, next(records).key] == ["x/1", "2"]
    with pytest.raises(SourceError, match=r"line 4: key 'v1\.5' has a dot"):
        next(records)
    with pytest.raises(SourceError, match="no column 'name'"):
        list(table(path, columns={"caption": "txt"}, key="name"))
    plain = put(tmp_path / "b.csv", "a,one\n")
    assert [record.key for record in table(plain, columns=[None, "txt"], key=0)] == ["a"]
    lines = put(tmp_path / "c.jsonl", '{"id": 7, "t": "x"}\n')
    assert [record.key for record in table(lines, columns={"t": "txt"}, key="id")] == ["7"]


def test_paths_can_be_named(tmp_path: Path) -> None:
    """`paths` says which fields are files, for captions in files and for values in fields of other names."""
    path = put(tmp_path / "a.csv", "a.jpg,a.txt,free\n")
    (record,) = table(path, columns=["jpg", "txt", "note"], paths=["jpg", "txt"])
    assert record.fields == {
        "jpg": FileRef(f"{tmp_path}/a.jpg"), "txt": FileRef(f"{tmp_path}/a.txt"), "note": b"free",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("a.csv", {"columns": "txt"}, r"pass \['txt'\]"),
        ("a.csv", {"columns": []}, "at least one field"),
        ("a.csv", {"columns": ["txt", "txt"]}, "each once"),
        ("a.csv", {"columns": ["txt"], "paths": ["jpg"]}, "paths names"),
        ("a.csv", {"columns": ["TXT"]}, "TXT"),
        ("a.jsonl", {"columns": ["txt"]}, "pass columns="),
        ("a.xlsx", {"columns": ["txt"]}, "is not known"),
    ],
)
def test_senseless_options_are_refused_at_once(name: str, options: dict[str, Any], match: str) -> None:
    """What can't be right is refused before the file is opened."""
    with pytest.raises(ValueError, match=match):
        table(name, **options)


def test_the_description_is_portable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be pickled, compared and printed, and means the same file wherever it is used."""
    put(tmp_path / "a.csv", "x,a.jpg\n")
    monkeypatch.chdir(tmp_path)
    source = table("a.csv", columns=["txt", "jpg"], root="images")
    monkeypatch.chdir("/")
    again = pickle.loads(pickle.dumps(source))
    assert again == source == table(tmp_path / "a.csv", columns=["txt", "jpg"], root=tmp_path / "images")
    assert repr(again) == repr(source)
    assert list(again) == list(source)


CELL = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=10)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(CELL, min_size=1, max_size=6),
    st.sampled_from([(".csv", ","), (".tsv", "\t")]),
    st.sampled_from(["\n", "\r\n"]),
)
def test_any_caption_that_csv_writes_comes_back(
    tmp_path_factory: pytest.TempPathFactory, captions: list[str], kind: tuple[str, str], ends: str
) -> None:
    """Captions with quotes, delimiters, line breaks and any character survive Python's own csv writer."""
    text = io.StringIO()
    csv.writer(text, delimiter=kind[1], lineterminator=ends, quoting=csv.QUOTE_ALL).writerows(
        [[c, "a.jpg"] for c in captions]
    )
    path = put(tmp_path_factory.mktemp("csv") / f"a{kind[0]}", "\ufeff" + text.getvalue())
    assert [f["txt"].decode() for f in fields(table(path, columns=["txt", "jpg"]))] == captions
