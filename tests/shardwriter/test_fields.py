"""Values into bytes and back, by field name."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import subprocess
import sys
import zipfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from shardwriter.errors import DecodeError, EncodeError, MissingExtra
from shardwriter.fields import INTEGER_FIELDS, TEXT_FIELDS, decode, decoder, encode, gunzip
from shardwriter.npy import decode_npz

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=50).filter(lambda t: not t.startswith("\ufeff"))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 60), 1 << 60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)
ARRAYS = hnp.arrays(
    st.one_of(hnp.scalar_dtypes(), hnp.unicode_string_dtypes(max_len=5), hnp.byte_string_dtypes(max_len=5)),
    hnp.array_shapes(min_dims=0, min_side=0, max_side=4),
)


def same_array(found: object, wanted: np.ndarray[Any, Any]) -> bool:
    assert isinstance(found, np.ndarray)
    native = wanted.dtype.newbyteorder("=")
    assert found.dtype == native
    assert found.shape == wanted.shape
    return found.tobytes() == wanted.astype(native).tobytes()


# --- text ------------------------------------------------------------------------------------------------------------


@given(st.sampled_from(TEXT_FIELDS), TEXT)
def test_text_comes_back_as_it_was(field: str, text: str) -> None:
    """Any text survives, with line ends of all kinds, blanks, and when empty."""
    assert decode(field, encode(field, text)) == text


def test_text_loses_only_a_byte_order_mark() -> None:
    """A byte order mark at the start is dropped on reading, one inside stays, and CRLF stays."""
    assert decode("txt", b"\xef\xbb\xbfa\r\nb\xef\xbb\xbf") == "a\r\nb\ufeff"


def test_text_that_is_not_utf8_names_the_byte() -> None:
    """Bytes that are not UTF-8 are an error, never replaced."""
    with pytest.raises(DecodeError, match=r"byte 3 .*field left\.txt"):
        decode("left.txt", b"caf\xe9")


def test_a_lone_surrogate_is_refused() -> None:
    """Text that UTF-8 can't hold is refused when it is written."""
    with pytest.raises(EncodeError, match="surrogate"):
        encode("txt", "a\ud800")


# --- integers --------------------------------------------------------------------------------------------------------


@given(st.sampled_from(INTEGER_FIELDS), st.integers())
def test_integers_come_back(field: str, value: int) -> None:
    """Integers of any size and sign survive."""
    assert decode(field, encode(field, value)) == value


def test_integers_from_numpy_and_from_text() -> None:
    """Numpy's integers and text in decimal are taken for integer fields."""
    assert [encode("cls", v) for v in (np.int16(-7), np.bool_(True), " 12 ")] == [b"-7", b"1", b"12"]


@pytest.mark.parametrize("raw", [b"", b"1.0", b"0x10", b"1_000", "\u0664".encode(), b"1 2", b"nan", b"9" * 5000])
def test_what_is_no_integer_is_refused(raw: bytes) -> None:
    """Only ASCII decimal digits with a sign are an integer; blanks around it are trimmed."""
    with pytest.raises(DecodeError):
        decode("cls", raw)
    assert decode("cls", b" \t+12\r\n") == 12


@pytest.mark.parametrize("value", [1.0, "one", None, [1], np.float32(1)])
def test_only_integers_go_into_integer_fields(value: object) -> None:
    """A float, a word or nothing is refused with the field and the type named."""
    with pytest.raises(EncodeError, match="field cls"):
        encode("cls", value)


# --- JSON and msgpack ------------------------------------------------------------------------------------------------


@given(JSON)
def test_json_comes_back(value: object) -> None:
    """What JSON can hold survives, and Python's own json reads it."""
    raw = encode("json", value)
    assert decode("json", raw) == value
    assert json.loads(raw) == value


def test_json_reads_nan_but_never_writes_it() -> None:
    """Others write NaN and it is read; ours are valid JSON."""
    assert str(decode("json", b"[NaN]")) == "[nan]"
    with pytest.raises(EncodeError, match="field json"):
        encode("json", [float("nan")])


@pytest.mark.parametrize("raw", [b"", b"{", b"[1,]", b"\xff", b"[" * 100_000])
def test_damaged_json_is_a_decode_error(raw: bytes) -> None:
    """Cut, malformed, undecodable and absurdly nested JSON are all a DecodeError."""
    with pytest.raises(DecodeError):
        decode("json", raw)


@pytest.mark.parametrize("value", [{1, 2}, b"x"[0:0].join, np.zeros(2), "\ud800"])
def test_json_refuses_what_it_can_not_hold(value: object) -> None:
    """Sets, functions, arrays and lone surrogates have no JSON."""
    with pytest.raises(EncodeError, match="field json"):
        encode("json", value)


@given(st.sampled_from(["mp", "msg", "msgpack"]), JSON)
def test_msgpack_comes_back(field: str, value: object) -> None:
    """What msgpack can hold survives."""
    assert decode(field, encode(field, value)) == value


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"\x93\x01", b"\x01\x01", b"\x81\x90\x01", b"\xa1\xff", b"\x91" * 5000])
def test_damaged_msgpack_is_a_decode_error(raw: bytes) -> None:
    """Cut, malformed and trailing bytes, keys that no dict can have, and absurd nesting are a DecodeError."""
    with pytest.raises(DecodeError):
        decode("mp", raw)


def test_a_missing_msgpack_names_the_extra() -> None:
    """Without the package the error says what to install."""
    code = (
        "import sys; sys.modules['msgpack'] = None\n"
        "from shardwriter.fields import decode\n"
        "try: decode('mp', b'x')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(MissingExtra.__name__)
    assert "pip install 'shardstream[msgpack]'" in done.stdout


# --- arrays ----------------------------------------------------------------------------------------------------------


@given(ARRAYS, st.booleans())
def test_arrays_come_back(array: np.ndarray[Any, Any], fortran: bool) -> None:
    """Arrays of any plain dtype, shape, byte order and memory order survive, writable and in native order."""
    given_ = np.asfortranarray(array) if fortran and array.ndim else array
    found = decode("npy", encode("npy", given_))
    assert same_array(found, array)
    assert isinstance(found, np.ndarray)
    assert found.flags.writeable


@given(ARRAYS)
def test_our_npy_and_numpys_agree(array: np.ndarray[Any, Any]) -> None:
    """Numpy reads what we write, and we read what numpy writes."""
    assert same_array(
        np.asarray(np.load(io.BytesIO(encode("npy", array)))).astype(array.dtype.newbyteorder("=")), array
    )
    file = io.BytesIO()
    np.save(file, array)
    assert same_array(decode("npy", file.getvalue()), array)


def test_structured_arrays_come_back() -> None:
    """Fields of records survive, also with names beyond Latin-1, which need another header version."""
    array = np.array([(1, 2.5), (3, 4.5)], [("\u5b57", ">i2"), ("b", "<f8")])
    found = decode("npy", encode("npy", array))
    assert isinstance(found, np.ndarray)
    assert found.tolist() == array.tolist()
    assert found.dtype.names == ("\u5b57", "b")


def test_fortran_order_keeps_its_layout() -> None:
    """An array in Fortran order comes back in Fortran order with the same elements."""
    array = np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3))
    found = decode("npy", memoryview(encode("npy", array)))
    assert isinstance(found, np.ndarray)
    assert found.flags.f_contiguous
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]]


def npy(descr: str, shape: str, data: bytes = b"") -> bytes:
    head = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\1\0" + len(head).to_bytes(2, "little") + head + data


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x93NUMPY\1\0",
        b"\x93NUMPY\1\0\xff\xff{}",
        b"\x93NUMPY\7\0" + npy("'<f4'", "(0,)")[8:],
        npy("'<f4'", "(1 << 60,)"),
        npy("'<f4'", f"({1 << 60},)"),
        npy("'<f4'", "(2,)", bytes(7)),
        npy("'<f4'", "(2,)", bytes(9)),
        npy("'<f4'", "(-1,)"),
        npy("'<f4'", "(True,)", bytes(4)),
        npy("'<f4'", "[1]", bytes(4)),
        npy("'zz'", "(1,)", bytes(4)),
        npy("exit()", "(1,)", bytes(4)),
        npy("'<f4'", "(" + "1," * 40 + ")", bytes(4)),
    ],
)
def test_damaged_npy_is_a_decode_error(raw: bytes) -> None:
    """Cut and absurd headers, and data that is not as long as promised, are a DecodeError before any allocation."""
    with pytest.raises(DecodeError):
        decode("npy", raw)


def test_object_arrays_are_refused_both_ways() -> None:
    """No pickle is written or read through .npy and .npz."""
    file = io.BytesIO()
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DecodeError, match="pickled"):
        decode("npy", file.getvalue())
    for field, value in (("npy", np.array([{}])), ("npz", {"a": np.array([{}])})):
        with pytest.raises(EncodeError, match="object"):
            encode(field, value)


@pytest.mark.parametrize("value", [[1, 2], 3, "text", None, np.ma.masked_array([1], [True])])
def test_only_arrays_go_into_npy(value: object) -> None:
    """Lists, numbers and masked arrays, whose mask would be lost, are refused."""
    with pytest.raises(EncodeError, match="field npy"):
        encode("npy", value)


@given(st.dictionaries(st.text("abcx/_", min_size=1, max_size=5), ARRAYS, max_size=3))
def test_npz_comes_back(arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    """A dict of arrays survives, and its bytes are the same each time."""
    raw = encode("npz", arrays)
    assert raw == encode("npz", arrays)
    found = decode("npz", raw)
    assert isinstance(found, dict)
    assert list(found) == list(arrays)
    assert all(same_array(found[name], array) for name, array in arrays.items())


def test_npz_of_numpy_is_read() -> None:
    """Compressed and plain files by numpy come out the same."""
    for save in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        save(file, a=np.arange(3), b=np.array(2.5))
        found = decode("npz", file.getvalue())
        assert isinstance(found, dict)
        assert {k: v.tolist() for k, v in found.items()} == {"a": [0, 1, 2], "b": 2.5}


def test_damaged_npz_is_a_decode_error() -> None:
    """Cut files, flipped bytes, foreign members and bombs are a DecodeError."""
    file = io.BytesIO()
    np.savez_compressed(file, a=np.zeros(100_000))
    whole = file.getvalue()
    for raw in (b"", whole[:-30], whole[:60] + b"\xff\xff" + whole[62:]):
        with pytest.raises(DecodeError):
            decode("npz", raw)
    with pytest.raises(DecodeError, match="more than 1000 bytes"):
        decode_npz(whole, 1000)
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(DecodeError, match=r"readme\.txt"):
        decode("npz", other.getvalue())


# --- gzip, bytes, pickles --------------------------------------------------------------------------------------------


@given(TEXT)
def test_gz_wraps_the_inner_field(text: str) -> None:
    """`txt.gz` is text in gzip that gzip itself reads, with the same bytes each time."""
    raw = encode("txt.gz", text)
    assert raw == encode("txt.gz", text)
    assert gzip.decompress(raw).decode() == text
    assert decode("txt.gz", raw) == text
    assert decode("txt.gz", gzip.compress(b"") + gzip.compress(text.encode()) + bytes(8)) == text


def test_gz_looks_at_the_name_inside() -> None:
    """`seg.npy.gz` is an array in gzip; gzip of something unknown stays bytes."""
    array = np.arange(3, dtype="<i4")
    assert same_array(decode("seg.npy.gz", encode("seg.npy.gz", array)), array)
    assert decoder("bin.gz") is None
    assert decoder("gz") is None
    assert gunzip(encode("bin.gz", "text")) == b"text"


def test_damaged_gz_is_a_decode_error() -> None:
    """Cut, flipped, empty and trailing bytes, and more than the limit, are a DecodeError."""
    whole = gzip.compress(b"hello" * 1000)
    for raw in (b"", b"hello", whole[:-1], whole[:-9], whole[:-4] + b"\1\1\1\1", whole + b"rubbish"):
        with pytest.raises(DecodeError):
            decode("txt.gz", raw)
    assert gunzip(whole, 5000) == b"hello" * 1000
    with pytest.raises(DecodeError, match="more than 4999 bytes"):
        gunzip(whole, 4999)


@given(st.sampled_from(["txt", "cls", "json", "npy", "mp", "jpg", "pkl", "bin", "txt.gz"]), st.binary(max_size=20))
def test_bytes_pass_unchanged(field: str, raw: bytes) -> None:
    """Bytes of any kind are stored as they are, whatever the field says."""
    assert encode(field, raw) == encode(field, bytearray(raw)) == encode(field, memoryview(raw)) == raw


@pytest.mark.parametrize("field", ["bin", "mp4", "jsonl", "jpg", "left.wav", "ten"])
def test_other_fields_stay_bytes(field: str) -> None:
    """What has no decoder here comes back as bytes."""
    assert decoder(field) is None
    assert decode(field, memoryview(b"abc")) == b"abc"


def test_text_in_any_other_field_becomes_utf8() -> None:
    """Text is stored as UTF-8 where the field has no type of its own; other values are refused."""
    assert encode("caption", "Gr\u00fc\u00dfe") == "Gr\u00fc\u00dfe".encode()
    with pytest.raises(EncodeError, match=r"type dict .*field caption"):
        encode("caption", {})


@pytest.mark.parametrize("field", ["pkl", "pickle", "pyd", "pth", "pt", "a.pkl", "pkl.gz"])
def test_pickles_are_refused_both_ways(field: str) -> None:
    """Nothing is pickled or unpickled, and the error says how to opt in."""
    raw = pickle.dumps([1])
    with pytest.raises(DecodeError, match="decode="):
        decode(field, gzip.compress(raw) if field.endswith("gz") else raw)
    with pytest.raises(EncodeError, match=f"field {field}"):
        encode(field, [1])


def test_the_last_part_of_the_name_decides() -> None:
    """`left.cls` is an integer and `cls.bin` is not."""
    assert decode("left.cls", b"3") == 3
    assert decode("cls.bin", b"3") == b"3"


# --- images ----------------------------------------------------------------------------------------------------------

PIXELS = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


@pytest.mark.parametrize("pixels", [PIXELS, PIXELS[:, :, 0], PIXELS[:, ::2]], ids=["rgb", "grey", "strided"])
def test_png_is_lossless(pixels: np.ndarray[Any, Any]) -> None:
    """Pixels of an array or a PIL image come back exactly from PNG."""
    for value in (pixels, Image.fromarray(pixels)):
        with Image.open(io.BytesIO(encode("seg.png", value))) as image:
            assert np.array_equal(np.asarray(image), pixels)


@pytest.mark.parametrize(("field", "kind"), [("jpg", "JPEG"), ("jpeg", "JPEG"), ("webp", "WEBP")])
def test_lossy_images_are_close(field: str, kind: str) -> None:
    """JPEG and WebP are of the named format, full colour resolution for JPEG, and near the pixels."""
    smooth = np.linspace(0, 255, 32 * 32 * 3).reshape(32, 32, 3).astype(np.uint8)
    raw = encode(field, smooth)
    assert raw == encode(field, smooth)
    with Image.open(io.BytesIO(raw)) as image:
        assert image.format == kind
        assert np.abs(np.asarray(image.convert("RGB"), dtype=int) - smooth).max() < 24
        if kind == "JPEG":
            assert {component[1:3] for component in image.layer} == {(1, 1)}  # type: ignore[attr-defined]


def test_an_orientation_tag_is_applied() -> None:
    """An image that is to be turned is stored turned, since saving drops the tag."""
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(PIXELS).save(file, "PNG", exif=exif)
    with Image.open(file) as tagged, Image.open(io.BytesIO(encode("png", tagged))) as stored:
        assert stored.size == (4, 6)


@pytest.mark.parametrize(
    "value",
    [PIXELS.astype(float), PIXELS[None], PIXELS[:0], np.zeros((2, 2, 4), np.uint8), "text", None, 3],
)
def test_what_is_no_image_is_refused(value: object) -> None:
    """Floats, stacks, empty arrays, four channels and text are refused with the field named."""
    with pytest.raises(EncodeError, match="field jpg"):
        encode("jpg", value)


def test_an_image_mode_that_jpeg_lacks_is_refused() -> None:
    """Transparency can't be stored as JPEG; the error says what can be done."""
    with pytest.raises(EncodeError, match=r"RGBA.*convert"):
        encode("jpg", Image.new("RGBA", (4, 4)))
