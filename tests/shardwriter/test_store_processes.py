"""Stores across processes: pickled, forked, spawned, and killed in the middle of a write."""

from __future__ import annotations

import copy
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from shardwriter.errors import StoreError
from shardwriter.store import open_store

ROOT = Path(__file__).parents[2]
DATA = bytes(range(256)) * 400

CHILD = """
import json, multiprocessing, os, sys, warnings
from shardwriter.errors import MissingExtra, ObjectChanged, ObjectNotFound, StoreError
from shardwriter.store import ForkedStoreWarning, contents, open_store

DATA = bytes(range(256)) * 400

def read(store, version, queue):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = {"right": store.read("deep/a b.tar") == DATA and store.read("empty") == b""}
        found["range"] = store.read_range("deep/a b.tar", 300, 310, version=version) == DATA[300:310]
        with contents(store, "deep/a b.tar") as view:
            found["mapped"] = bytes(view) == DATA
        found["names"] = [info.name for info in store.list()]
        for name, call in {
            "changed": lambda: store.read_range("deep/a b.tar", 0, 2, version='"0123456789"'),
            "absent": lambda: store.read("nothing"),
            "beyond": lambda: store.read_range("deep/a b.tar", 0, len(DATA) + 1),
        }.items():
            try:
                call()
            except StoreError as error:
                found[name] = type(error).__name__
        store.write("from/child", b"1")
        found["written"] = store.read("from/child") == b"1"
    found["warnings"] = sum(issubclass(w.category, ForkedStoreWarning) for w in caught)
    queue.put(found)

def without_s3fs(store, version, queue):
    sys.modules["s3fs"] = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            store.read("empty")
    except MissingExtra as error:
        queue.put({"error": str(error)})

def read_twice_forked(store, version, queue):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store.read("empty")
    run(multiprocessing.get_context("fork"), read, store, version, queue)

def run(context, target, store, version, queue):
    children = [context.Process(target=target, args=(store, version, queue)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0, child.exitcode

if __name__ == "__main__":
    url, options, method, target = json.loads(sys.argv[1])
    store = open_store(url, options)
    store.write("deep/a b.tar", DATA)
    store.write("empty", b"")
    version = store.info("deep/a b.tar").version
    assert store.read("deep/a b.tar") == DATA
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    run(context, globals()[target], store, version, queue)
    count = 4 if target == "read_twice_forked" else 2
    print(json.dumps([queue.get() for _ in range(count)]))
    assert store.read("deep/a b.tar") == DATA
"""


def environment(**more: str) -> dict[str, str]:
    """The environment without AWS settings, with our packages on the path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return kept | {"PYTHONPATH": str(ROOT), **more}


def in_processes(tmp_path: Path, s3: Any, method: str, target: str) -> list[dict[str, Any]]:
    script = tmp_path / "script.py"
    script.write_text(CHILD)
    arguments = json.dumps([s3.bucket("processes") + "/x y", s3.options, method, target])
    done = subprocess.run(
        [sys.executable, str(script), arguments], env=environment(), timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert s3.secret not in done.stderr + done.stdout
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def expected(warnings: int) -> dict[str, Any]:
    return {
        "right": True,
        "range": True,
        "mapped": True,
        "written": True,
        "changed": "ObjectChanged",
        "absent": "ObjectNotFound",
        "beyond": "StoreError",
        "warnings": warnings,
    }


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_children_read_what_the_parent_read(tmp_path: Path, s3: Any, method: str) -> None:
    """Children of a process that has used S3 do all that it can, without a hang; forked ones warn once each.

    The secret was given as an argument and reaches children that are started with it, by whatever method.
    """
    for found in in_processes(tmp_path, s3, method, "read"):
        assert found.pop("names") in (["deep/a b.tar", "empty"], ["deep/a b.tar", "empty", "from/child"])
        assert found == expected(warnings=1 if method == "fork" else 0)


def test_grandchildren_too(tmp_path: Path, s3: Any) -> None:
    """A forked child that has used S3 can fork again."""
    for found in in_processes(tmp_path, s3, "fork", "read_twice_forked"):
        del found["names"]
        assert found == expected(warnings=1)


def test_forked_children_without_s3fs_say_what_to_do(tmp_path: Path, s3: Any) -> None:
    """Where s3fs is not installed, a forked child raises an error that names the two ways out."""
    for found in in_processes(tmp_path, s3, "fork", "without_s3fs"):
        assert "forkserver" in found["error"]
        assert "pip install 'shardstream[s3]'" in found["error"]


def test_a_fork_before_the_first_use_changes_nothing(tmp_path: Path, s3: Any) -> None:
    """A child forked from a process that has only opened a store reads as fast as ever, without a warning."""
    script = f"""
        import os, warnings
        warnings.simplefilter("error")
        from shardwriter.store import open_store
        store = open_store({s3.bucket()!r}, {s3.options!r})
        if (child := os.fork()) == 0:
            store.write("a", b"1")
            os._exit(0 if store.read("a") == b"1" else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert store.read("a") == b"1"
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=environment(), timeout=60, check=True)


def test_pickles_carry_no_secret(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickled store has no secret in it, also after use, and works again where the usual places have one."""
    store = open_store(s3.bucket(), s3.options)
    store.write("a", b"123")
    data = pickle.dumps(store)
    assert s3.secret.encode() not in data
    restored = pickle.loads(data)
    assert (restored.url, restored.path) == (store.url, None)
    with pytest.raises(StoreError) as caught:
        restored.read("a")
    assert "not pickled" in str(caught.value.hint)
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    assert pickle.loads(data).read("a") == b"123"


def test_copies_within_the_process_keep_the_secret(s3: Any) -> None:
    """Copies and deep copies of a store work as it does."""
    store = open_store(s3.bucket(), s3.options)
    store.write("a", b"123")
    assert copy.copy(store).read("a") == b"123"
    assert copy.deepcopy({"store": store})["store"].read("a") == b"123"


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://bucket/x", {"key": "a", "secret": "hush1", "token": "hush2"}),
        ("s3://a:hush1@bucket/x", {}),
        ("https://a:hush1@host/x?sig=hush2", {}),
        ("az://bucket/x", {"token": "hush1"}),
        ("sftp://user:hush1@host/x", {"password": "hush2"}),
        ("memory://x", {"api_token": "hush1"}),
    ],
)
def test_secrets_show_nowhere(url: str, options: dict[str, str]) -> None:
    """Neither the url nor the text of a store, nor what is in it, nor its pickle shows a secret."""
    store = open_store(url, options)
    for text in (store.url, repr(store), str(store), repr(vars(store)), repr(pickle.dumps(store))):
        assert "hush" not in text
    assert pickle.loads(pickle.dumps(store)).url == store.url


def test_local_stores_are_pickled(tmp_path: Path) -> None:
    """A store of a folder comes back from a pickle as it was."""
    store = open_store(tmp_path)
    store.write("a", b"1")
    assert pickle.loads(pickle.dumps(store)).read("a") == b"1"


@pytest.mark.parametrize("old", [None, b"old content"])
@pytest.mark.parametrize("method", ["write", "write_file"])
def test_a_writer_killed_before_the_rename(tmp_path: Path, old: bytes | None, method: str) -> None:
    """A writer killed when all bytes are in its temporary file leaves the name absent, or with its old content."""
    store = open_store(tmp_path / "set")
    if old is not None:
        store.write("a.tar", old)
    (tmp_path / "source").write_bytes(b"new content")
    action = 'write("a.tar", b"new content")' if method == "write" else 'write_file("a.tar", pathlib.Path("source"))'
    script = f"""
        import os, pathlib, time
        from shardwriter.store import open_store
        rename = os.replace
        def replace(source, target):
            if str(target).endswith("a.tar"):
                print(os.path.getsize(source), flush=True)
                time.sleep(60)
            rename(source, target)
        os.replace = replace
        open_store("set").{action}
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], env=environment(), stdout=subprocess.PIPE, cwd=tmp_path
    ) as writer:
        assert writer.stdout is not None
        assert int(writer.stdout.readline()) == len(b"new content")
        writer.send_signal(signal.SIGKILL)
    assert [info.name for info in store.list()] == ([] if old is None else ["a.tar"])
    assert (tmp_path / "set" / "a.tar").exists() == (old is not None)
    store.write("a.tar", b"newer")
    assert store.read("a.tar") == b"newer"


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    """A write that fails half-way, here at a limit of the file size, removes its temporary file."""
    script = """
        import resource, signal
        from shardwriter.errors import StoreError
        from shardwriter.store import open_store
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            open_store("set").write("a.tar", bytes(5000))
        except StoreError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], env=environment(), cwd=tmp_path, capture_output=True, text=True
    )
    assert "a.tar" in done.stdout
    assert list((tmp_path / "set").iterdir()) == []


def test_an_upload_killed_on_the_way(tmp_path: Path, s3: Any) -> None:
    """An upload to S3 that is killed at any moment leaves the old object or the whole new one."""
    store = open_store(s3.bucket("killed"), s3.options)
    store.write("a.tar", b"old content")
    size = 64 << 20
    script = f"""
        import pathlib
        from shardwriter.store import open_store
        store = open_store({store.url!r}, {s3.options!r})
        store.info("a.tar")
        with open("source", "wb") as file:
            file.truncate({size})
        print("go", flush=True)
        store.write_file("a.tar", pathlib.Path("source"))
    """
    for delay in (0.0, 0.1, 0.3):
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)], env=environment(), stdout=subprocess.PIPE, cwd=tmp_path
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"go\n"
            time.sleep(delay)
            writer.send_signal(signal.SIGKILL)
        assert store.info("a.tar").size in (len(b"old content"), size)
        assert [info.name for info in store.list()] == ["a.tar"]
