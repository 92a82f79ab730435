"""A web server for the files of a folder, with ranges, at little cost: what stands in for object storage.

python tools/bench/serving.py bench-data/cc3m     # prints its URL, and ends with its standard input
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote


class Files(BaseHTTPRequestHandler):
    """Whole files and ranges, sent by the kernel."""

    protocol_version = "HTTP/1.1"
    folder: Path

    def do_GET(self) -> None:
        path = self.folder / unquote(self.path.partition("?")[0]).lstrip("/")
        try:
            file = os.open(path, os.O_RDONLY)
        except OSError:
            self.send_error(404)
            return
        try:
            self._send(file)
        finally:
            os.close(file)

    do_HEAD = do_GET  # noqa: N815

    def _send(self, file: int) -> None:
        status = os.fstat(file)
        start, end = 0, status.st_size
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        self.send_response(206 if asked else 200)
        if asked:
            start, end = int(asked[1]), min(end, int(asked[2]) + 1) if asked[2] else end
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{status.st_size}")
        self.send_header("Content-Length", str(end - start))
        self.send_header("ETag", f'"{status.st_mtime_ns:x}-{status.st_size:x}"')
        self.send_header("Last-Modified", self.date_time_string(int(status.st_mtime)))
        self.end_headers()
        self.wfile.flush()
        while self.command == "GET" and start < end:
            start += os.sendfile(self.connection.fileno(), file, start, end - start)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002, ARG002
        return


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, address: object) -> None:  # noqa: ARG002
        return  # a client that goes away


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    server = Server(("127.0.0.1", 0), type("Handler", (Files,), {"folder": args.folder}))
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
