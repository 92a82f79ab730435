"""The command `shardstream`."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from PIL import Image

from shardwriter.cli import main
from shardwriter.format import INDEX_SUFFIX, MANIFEST, PARTIAL


def picture(path: Path, width: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = io.BytesIO()
    Image.new("RGB", (width, 8)).save(file, "JPEG")
    path.write_bytes(file.getvalue())


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Seven pictures and a table of captions."""
    for i in range(7):
        picture(tmp_path / "photos" / f"img_{i}.jpg", 10 + i)
    (tmp_path / "photos" / "captions.tsv").write_text("".join(f"caption {i}\timg_{i}.jpg\n" for i in range(7)))
    return tmp_path / "photos"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the command."""
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def write_table(capsys: pytest.CaptureFixture[str], photos: Path, out: object, *more: object) -> tuple[int, str, str]:
    table = photos / "captions.tsv"
    return run(
        capsys, "write", "--source", "table", "--input", table, "--columns", "txt,jpg", "--workers", 1, *more, out
    )


def test_a_table_is_written_verified_and_inspected(
    capsys: pytest.CaptureFixture[str], photos: Path, tmp_path: Path
) -> None:
    """The main job by the command alone: captions and files in, a dataset that passes the check out."""
    out = tmp_path / "out"
    code, text, _ = write_table(capsys, photos, out, "--max-samples", 3)
    assert code == 0
    assert "7 samples in 3 shards" in text
    code, text, _ = run(capsys, "verify", out, "--workers", 1)
    assert code == 0
    assert "no errors" in text
    code, text, _ = run(capsys, "inspect", out)
    assert code == 0
    assert "7 samples in 3 shards" in text
    assert "jpg 7, txt 7" in text
    assert "column width: least 10, mean 13, greatest 16" in text
    assert text.count("(shard-000000.tar)") == 3
    code, text, _ = run(capsys, "inspect", out, "000000004")
    assert code == 0
    assert "000000004  (shard-000001.tar)" in text
    assert "width=14" in text
    assert "'caption 4'" in text


def test_a_folder_is_written(capsys: pytest.CaptureFixture[str], photos: Path, tmp_path: Path) -> None:
    """A folder with a filter by field, a prefix and a size limit in MB."""
    arguments = ["--input", photos, "--fields", "jpg", "--prefix", "train", "--max-bytes", "1MB", "--workers", 2]
    code, text, _ = run(capsys, "write", "--source", "folder", *arguments, tmp_path / "out")
    assert code == 0
    assert "passed over: 1 of other fields" in text
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [MANIFEST, "train-000000.tar", "train-000000.tar" + INDEX_SUFFIX]


@pytest.mark.parametrize("columns", ["filepath=jpg,caption=txt", " caption=txt , filepath=jpg "])
def test_a_table_with_a_header_is_written(
    capsys: pytest.CaptureFixture[str], photos: Path, tmp_path: Path, columns: str
) -> None:
    """COLUMN=FIELD names columns, --root and --key are used."""
    table = tmp_path / "list.csv"
    table.write_text("id,caption,filepath\na,zero,img_0.jpg\nb,one,img_1.jpg\n")
    arguments = ["--input", table, "--columns", columns, "--root", photos, "--key", "id", "--workers", 1]
    assert run(capsys, "write", "--source", "table", *arguments, tmp_path / "out")[0] == 0
    code, text, _ = run(capsys, "inspect", tmp_path / "out", "b", "--json")
    assert code == 0
    assert json.loads(text)["values"] == {"txt": "one"}


def test_a_table_without_a_header_can_skip_columns_and_have_keys(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """'-' passes a column over, and --key is then a position."""
    (tmp_path / "a.csv").write_text("x;k1;text\n")
    arguments = ["--input", tmp_path / "a.csv", "--columns=-,-,txt", "--key", 1, "--delimiter", ";", "--workers", 1]
    assert run(capsys, "write", "--source", "table", *arguments, tmp_path / "out")[0] == 0
    assert json.loads(run(capsys, "inspect", tmp_path / "out", "--json")[1])["first"][0]["key"] == "k1"


def test_json_is_one_line_of_numbers(capsys: pytest.CaptureFixture[str], photos: Path, tmp_path: Path) -> None:
    """With --json each command prints one JSON object."""
    out = tmp_path / "out"
    report = json.loads(write_table(capsys, photos, out, "--json")[1])
    assert (report["shards"], report["samples"], report["bytes"]) == (1, 7, (out / "shard-000000.tar").stat().st_size)
    found = json.loads(run(capsys, "inspect", out, "--json")[1])
    assert (found["samples"], found["fields"], found["columns"]["width"]) == (7, {"jpg": 7, "txt": 7}, [10, 13, 16])
    assert found["first"][0]["numbers"] == {"height": 8, "width": 10}
    verified = json.loads(run(capsys, "verify", out, "--json", "--workers", 1)[1])
    assert (verified["ok"], verified["samples"], verified["findings"]) == (True, 7, [])
    indexed = json.loads(run(capsys, "index", out, "--index", tmp_path / "index", "--json", "--workers", 1)[1])
    assert indexed["samples"] == 7


def test_damage_is_found_with_exit_code_1(capsys: pytest.CaptureFixture[str], photos: Path, tmp_path: Path) -> None:
    """Verify lists what is wrong; index stops at it, or salvages when told to."""
    out = tmp_path / "out"
    write_table(capsys, photos, out)
    shard = out / "shard-000000.tar"
    shard.write_bytes(shard.read_bytes()[:-1500])
    code, text, _ = run(capsys, "verify", out, "--workers", 1)
    assert code == 1
    assert "shard-000000.tar" in text
    code, _, err = run(capsys, "index", out, "--workers", 1)
    assert code == 1
    assert "shard-000000.tar" in err
    assert "offset" in err
    code, text, _ = run(capsys, "index", out, "--salvage", "--workers", 1)
    assert code == 0
    assert "6 samples" in text


def test_an_index_elsewhere_is_used(capsys: pytest.CaptureFixture[str], photos: Path, tmp_path: Path) -> None:
    """--index names the place of the index for index, verify and inspect; --reuse keeps what fits."""
    out, index = tmp_path / "out", tmp_path / "index"
    write_table(capsys, photos, out, "--max-samples", 3)
    for name in [MANIFEST, *(f"shard-{i:06d}.tar{INDEX_SUFFIX}" for i in range(3))]:
        (out / name).unlink()
    assert run(capsys, "inspect", out)[0] == 1
    for more in ([], ["--reuse"]):
        assert run(capsys, "index", out, "--index", index, "--workers", 1, *more)[0] == 0
    assert run(capsys, "verify", out, "--index", index, "--workers", 1)[0] == 0
    for place in ([out, "--index", index], [index]):
        found = json.loads(run(capsys, "inspect", *place, "--json")[1])
        assert found["first"][0]["values"] == {"txt": "caption 0"}


def test_errors_are_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str], photos: Path, tmp_path: Path) -> None:
    """An error says what and where on standard error, without a traceback, and nothing on standard output."""
    write_table(capsys, photos, tmp_path / "out")
    cases = [
        write_table(capsys, photos, tmp_path / "out"),
        write_table(capsys, photos, tmp_path / "new", "--delimiter", ";"),
        run(capsys, "write", "--source", "folder", "--input", tmp_path / "gone", tmp_path / "new2"),
        run(capsys, "inspect", tmp_path / "out", "no such key"),
        run(capsys, "inspect", tmp_path / "gone"),
        run(capsys, "index", tmp_path / "gone"),
        run(capsys, "inspect", "nowhere://x"),
    ]
    for code, out, err in cases:
        assert code == 1
        assert out == ""
        assert err.startswith("shardstream: ")
        assert err.count("\n") == 1
    assert "--resume" not in cases[0][2]
    assert "finished dataset" in cases[0][2]


def test_resume_is_offered_and_works(capsys: pytest.CaptureFixture[str], photos: Path, tmp_path: Path) -> None:
    """After a failure the error names --resume, and with it the command ends well."""
    out = tmp_path / "out"
    missing = photos / "img_5.jpg"
    data = missing.read_bytes()
    missing.unlink()
    code, _, err = write_table(capsys, photos, out, "--max-samples", 2)
    assert code == 1
    assert "captions.tsv line 6" in err
    missing.write_bytes(data)
    code, _, err = write_table(capsys, photos, out, "--max-samples", 2)
    assert code == 1
    assert "--resume" in err
    assert write_table(capsys, photos, out, "--max-samples", 2, "--resume")[0] == 0
    assert PARTIAL not in [path.name for path in out.iterdir()]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["write", "out"],
        ["write", "--source", "table", "--input", "x.csv", "out"],
        ["write", "--source", "folder", "--input", "x", "--columns", "txt", "out"],
        ["write", "--source", "table", "--input", "x.csv", "--columns", "txt", "--fields", "txt", "out"],
        ["write", "--source", "table", "--input", "x.csv", "--columns", "a=txt,jpg", "out"],
        ["write", "--source", "folder", "--input", "x", "--max-bytes", "12 parsecs", "out"],
        ["write", "--source", "folder", "--input", "x", "--max-bytes", "0", "out"],
        ["write", "--source", "folder", "--input", "x", "--max-samples", "0", "out"],
        ["write", "--source", "folder", "--input", "x", "--workers", "-1", "out"],
        ["write", "--source", "folder", "--input", "x", "--prefix", "a/b", "out"],
        ["inspect"],
    ],
)
def test_wrong_usage_is_exit_code_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """Wrong or missing arguments are told with the usage."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage: shardstream" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["write", "index", "verify", "inspect"])
def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """--help ends with an example of the command itself."""
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert f"example:\n  shardstream {command} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "size"), [("100", 100), ("1kb", 1000), ("1K", 1024), ("1.5MiB", 3 << 19), ("2 GB", 2 * 10**9)]
)
def test_sizes_have_units(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, size: int) -> None:
    """Sizes are bytes, or have a decimal or binary unit; the marker of an unfinished dataset shows what was taken."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").symlink_to("gone")
    arguments = ["--input", tmp_path / "in", "--max-bytes", text, "--workers", 1, tmp_path / "out"]
    assert run(capsys, "write", "--source", "folder", *arguments)[0] == 1
    assert json.loads((tmp_path / "out" / PARTIAL).read_text())["max_bytes"] == size


def test_a_reader_that_stops_is_no_traceback(capsys: pytest.CaptureFixture[str], photos: Path, tmp_path: Path) -> None:
    """With nobody at the other end of the pipe, the command ends quietly."""
    write_table(capsys, photos, tmp_path / "out")
    command = [sys.executable, "-m", "shardwriter.cli", "inspect", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_ctrl_c_ends_the_command_with_130(tmp_path: Path) -> None:
    """SIGINT to the group ends the command and its workers, without a traceback, a temporary file or a manifest."""
    table = tmp_path / "captions.tsv"
    table.write_text("".join(f"caption {i}\n" for i in range(30_000)))
    out = tmp_path / "out"
    # One sample a shard, so that it takes much longer than this test.
    arguments = ["--input", str(table), "--columns", "txt", "--max-samples", "1", "--workers", "2", str(out)]
    command = [sys.executable, "-m", "shardwriter.cli", "write", "--source", "table", *arguments]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, preexec_fn=heed_sigint
    ) as process:
        wait_for(lambda: any(out.glob("*.tar")), process)
        workers = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert err == b"shardstream: interrupted\n"
    psutil.wait_procs(workers, timeout=10)
    assert workers
    assert not [worker for worker in workers if worker.is_running()]
    names = [path.name for path in out.iterdir()]
    assert MANIFEST not in names
    assert not [name for name in names if name.startswith(".")]


def heed_sigint() -> None:
    """Where the tests run in the background of a shell, their children are born with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for(holds: Any, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_s3_by_the_command(
    capsys: pytest.CaptureFixture[str], photos: Path, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write, verify and inspect work on s3:// with --endpoint-url and credentials from the environment."""
    for name, value in s3.environment.items():
        if name != "AWS_ENDPOINT_URL":
            monkeypatch.setenv(name, value)
    url = s3.bucket("command") + "/data"
    there = ["--endpoint-url", s3.endpoint]
    assert write_table(capsys, photos, url, "--max-samples", 3, *there)[0] == 0
    assert run(capsys, "verify", url, "--workers", 1, *there)[0] == 0
    code, text, _ = run(capsys, "inspect", url, "000000006", *there)
    assert code == 0
    assert "'caption 6'" in text
    assert run(capsys, "inspect", url, "--anon", *there)[0] == 1
