"""Stores where obstore can't be imported, and web servers that point elsewhere, as hubs of datasets do."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from shardwriter import ShardWriter
from shardwriter.errors import StoreError
from shardwriter.store import open_store
from streaming import FixedBatch, StreamingDataset

ROOT = Path(__file__).parents[2]
READER = textwrap.dedent(
    """
    import json, sys

    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "obstore":
                raise ModuleNotFoundError("no obstore here", name="obstore")

    sys.meta_path.insert(0, Absent())
    from shardwriter.errors import MissingExtra
    from shardwriter.store import open_store
    from streaming import FixedBatch, StreamingDataset

    url, options = sys.argv[1], json.loads(sys.argv[2])
    batches = StreamingDataset(url, batch=FixedBatch(4), shuffle=True, tail="uneven", storage_options=options)
    print(json.dumps(sorted(text for batch in batches for text in batch["txt"])))
    try:
        open_store("gs://bucket/x").info("a")
    except MissingExtra as error:
        print(error)
    """
)


def test_s3_is_read_through_s3fs_where_obstore_is_absent(s3: Any) -> None:
    """Without obstore S3 is read all the same, without a warning; what only obstore serves says what is missing."""
    url = s3.bucket("absent") + "/set"
    with ShardWriter(url, max_samples=5, storage_options=s3.options) as writer:
        for i in range(20):
            writer.write({"__key__": f"{i:03d}", "txt": f"text {i}"})
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", READER, url, json.dumps(s3.options)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    texts, missing = done.stdout.splitlines()
    assert json.loads(texts) == sorted(f"text {i}" for i in range(20))
    assert "obstore" in missing


class Hub(BaseHTTPRequestHandler):
    """Sends every request on to another path, where the files are; both serve ranges."""

    protocol_version = "HTTP/1.1"
    folder: Path
    token: str | None = None

    def do_GET(self) -> None:
        """A redirect, or the file."""
        if self.token is not None and self.headers.get("Authorization") != f"Bearer {self.token}":
            self.send_error(401)
        elif self.path.startswith("/resolve/"):
            self.send_response(302)
            self.send_header("Location", self.path.replace("/resolve/", "/files/", 1) + "?signature=abc")
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._send()

    def _send(self) -> None:
        path = self.folder / self.path.removeprefix("/files/").partition("?")[0]
        if not path.is_file():
            self.send_error(404)
            return
        data, start, end = path.read_bytes(), 0, path.stat().st_size
        asked = self.headers.get("Range")
        if asked:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, end = int(first), min(end, int(last) + 1)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        self.send_header("Content-Length", str(end - start))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[start:end])

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing."""


@pytest.fixture(params=[None, "hf_secret"], ids=["public", "private"])
def hub(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str, dict[str, Any]]]:
    """The URL of a dataset behind redirects, and the options that it takes."""
    with ShardWriter(tmp_path / "set", max_samples=5) as writer:
        for i in range(20):
            writer.write({"__key__": f"{i:03d}", "txt": f"text {i}"})
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Handler", (Hub,), {"folder": tmp_path, "token": request.param})
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    options = {} if request.param is None else {"token": request.param}
    yield f"http://127.0.0.1:{server.server_port}/resolve/set", options
    server.shutdown()
    thread.join()
    server.server_close()


def test_redirects_are_followed(hub: tuple[str, dict[str, Any]]) -> None:
    """A dataset whose files are elsewhere, behind redirects, is read as any other, with pinned versions; with a token
    where one is needed, which no message shows.
    """
    url, options = hub
    if options:
        with pytest.raises(StoreError) as caught:
            open_store(url, {"token": "hf_wrong"}).info("manifest.ssx")
        assert "hf_wrong" not in str(caught.value)
    assert open_store(url, options).info("manifest.ssx").version == '"1"'
    batches = StreamingDataset(url, batch=FixedBatch(4), shuffle=True, tail="uneven", storage_options=options)
    assert sorted(text for batch in batches for text in batch["txt"]) == sorted(f"text {i}" for i in range(20))
