"""Reads of object storage through a proxy that breaks them: the right bytes, or an error that says what and where."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from faults import ALWAYS, Fault, Proxy, Request, fin, ignore_range, reset, shorten, stall, status

from shardwriter.errors import ObjectChanged, ObjectNotFound, StoreError
from shardwriter.store import Store, contents, join_url, open_store

MIB = 1 << 20
DATA = secrets.token_bytes(20 * MIB)
START, END = 5 * MIB + 17, 13 * MIB + 17


@pytest.fixture(scope="module")
def bucket(s3: Any) -> str:
    """The URL of a bucket with the object "a"."""
    url: str = s3.bucket("faults")
    open_store(url, s3.options).write("a", DATA)
    return url


@pytest.fixture
def proxy(s3: Any) -> Iterator[Proxy]:
    """A proxy in front of the S3 server, without a fault yet."""
    with Proxy(s3.endpoint) as proxy:
        yield proxy


@pytest.fixture
def options(s3: Any, proxy: Proxy) -> dict[str, Any]:
    """What leads to the S3 server through the proxy, with time for all tries that a test needs."""
    return s3.options | {"endpoint_url": proxy.url, "deadline": 60}


@pytest.fixture
def store(bucket: str, options: dict[str, Any]) -> Store:
    """The bucket through the proxy."""
    return open_store(bucket, options)


@pytest.mark.parametrize(
    "faults",
    [
        [],
        [reset(3 * MIB)],
        [reset(3 * MIB, ALWAYS)],
        [fin(3 * MIB)],
        [fin(3 * MIB, ALWAYS)],
        [stall(3 * MIB)],
        [stall(3 * MIB, ALWAYS)],
        [shorten(3 * MIB)],
        [shorten(3 * MIB, ALWAYS)],
        [status(503, times=3)],
        [status(500, times=3)],
        [status(429, times=2)],
        [status(503), reset(3 * MIB), stall(MIB // 2), fin(0)],
    ],
    ids=lambda faults: "+".join(f"{f.kind}{f.code or ''}x{f.times or '-'}" for f in faults) or "none",
)
def test_faults_that_pass(bucket: str, options: dict[str, Any], proxy: Proxy, faults: list[Fault]) -> None:
    """A range of 8 MiB comes whole and right through failures that pass, or that let some MB through each time."""
    store = open_store(bucket, options | {"read_timeout": 0.4})
    version = store.info("a").version
    proxy.faults = faults
    view = store.read_view("a", START, END, version=version)
    assert view == DATA[START:END]
    assert view.readonly
    assert all(not fault.times for fault in faults)
    # What came is not asked for again: no byte is sent more than twice, and those of the first try once more.
    assert proxy.sent <= 2 * len(view) + 3 * MIB


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (reset(MIB // 2, ALWAYS), "reset by peer"),
        (fin(MIB // 2, ALWAYS), "closed early"),
        (stall(MIB // 2, ALWAYS), "timed out"),
        (shorten(MIB // 2, ALWAYS), "the server sent the bytes"),
        (status(500, times=ALWAYS), "500 Internal"),
        (status(503, times=ALWAYS), "503 Service Unavailable: SlowDown"),
        (status(429, times=ALWAYS), "429 Too Many"),
    ],
    ids=lambda value: f"{value.kind}{value.code or ''}" if isinstance(value, Fault) else "",
)
def test_faults_that_stay(bucket: str, options: dict[str, Any], proxy: Proxy, fault: Fault, cause: str) -> None:
    """A failure that stays is an error after the deadline: URL, offset, cause, how long and how often it was tried."""
    store = open_store(bucket, options | {"deadline": 0.6} | ({"read_timeout": 0.1} if fault.kind == "stall" else {}))
    proxy.faults = [fault]
    with pytest.raises(StoreError, match=cause) as caught:
        store.read_view("a", START, END)
    assert (caught.value.shard, caught.value.offset) == (join_url(store.url, "a"), START)
    assert caught.value.hint
    assert " tries in " in str(caught.value)
    assert len(proxy.requests) > 2


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (status(401, times=ALWAYS), StoreError, "401"),
        (status(403, error="AccessDenied", times=ALWAYS), StoreError, "403 Forbidden: AccessDenied"),
        (status(404, times=ALWAYS), ObjectNotFound, "no such object"),
        (status(405, times=ALWAYS), StoreError, "405"),
        (status(416, times=ALWAYS), StoreError, "ends before"),
        (status(301, times=ALWAYS), StoreError, "region"),
        (ignore_range(ALWAYS), StoreError, "does not serve parts"),
    ],
    ids=lambda value: f"{value.kind}{value.code or ''}" if isinstance(value, Fault) else "",
)
def test_refusals_are_final(store: Store, proxy: Proxy, fault: Fault, kind: type[StoreError], words: str) -> None:
    """What no other try can cure is asked once, and the error names the object and what to do."""
    proxy.faults = [fault]
    with pytest.raises(kind, match=words) as caught:
        store.read_view("a", START, END)
    assert type(caught.value) is kind
    assert (caught.value.shard, caught.value.offset) == (join_url(store.url, "a"), START)
    assert caught.value.hint
    assert len(proxy.requests) == 1


def test_pieces_that_came_are_kept(store: Store, proxy: Proxy) -> None:
    """After a failure 1 MiB is asked for at a time, and a failed piece alone is asked for again."""
    proxy.faults = [
        reset(3 * MIB),
        status(500, only=lambda method, path, span: bool(span) and span[0] > START + 2 * MIB),
    ]
    assert store.read_view("a", START, END) == DATA[START:END]
    first, *pieces = [(each.range[0], each.range[1]) for each in proxy.requests if each.range]
    assert first == (START, END - 1)
    starts = [low for low, _ in pieces]
    assert starts == sorted([*range(START, END, MIB), START + 3 * MIB])
    assert all(high - low == MIB - 1 for low, high in pieces)


def test_a_whole_object_through_faults(bucket: str, options: dict[str, Any], proxy: Proxy) -> None:
    """Reading whole objects, in memory and as a mapping, passes through the same tries."""
    store = open_store(bucket, options | {"read_timeout": 0.4})
    proxy.faults = [reset(3 * MIB), status(503), shorten(MIB), stall(MIB // 2)]
    assert store.read("a") == DATA
    proxy.faults = [fin(3 * MIB, times=4), status(500)]
    with contents(store, "a") as view:
        assert view == DATA


def test_one_connection_that_breaks_leaves_the_others(store: Store, proxy: Proxy) -> None:
    """Of many ranges that are read at once, each gets its own bytes, whichever of them fail."""
    proxy.faults = [reset(MIB, 3), fin(MIB, 3), shorten(MIB, 3), status(503, times=3)]
    with ThreadPoolExecutor(8) as pool:
        views = pool.map(lambda i: store.read_view("a", i * MIB, (i + 2) * MIB), range(0, 20, 2))
        assert b"".join(views) == DATA


def test_retry_after_is_respected(store: Store, proxy: Proxy) -> None:
    """No request comes sooner than a busy server said, also not for other ranges; the server is asked once for that."""
    proxy.faults = [status(429, retry_after=1, times=2)]
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(store.read_view, "a", 0, MIB)
        while len(proxy.requests) < 2:  # the refused one, and the one that asks for how long
            threading.Event().wait(0.001)
        second = pool.submit(store.read_view, "a", MIB, 2 * MIB)
        assert first.result() == DATA[:MIB]
        assert second.result() == DATA[MIB : 2 * MIB]
    refused, asking, *rest = proxy.requests
    assert asking.range == (0, 0)
    assert "authorization" not in asking.headers
    assert "X-Amz-Signature" in asking.path
    assert len(rest) in (2, 3)
    late = [each for each in rest if each.time >= refused.time + 1]
    assert len(late) >= len(rest) - 1  # the second range may have been under way when the answer came
    assert {each.range for each in late} <= {(0, MIB - 1), (MIB, 2 * MIB - 1)}


@pytest.mark.parametrize("code", [429, 503])
def test_a_pause_past_the_deadline_is_an_error(store: Store, proxy: Proxy, code: int) -> None:
    """A server that wants to be left alone for too long is not waited for; the error says what it asked."""
    proxy.faults = [status(code, retry_after=100, times=2)]
    with pytest.raises(StoreError, match=rf"{code} .*asks to wait for 100 s, past the deadline of 60 s") as caught:
        store.read_view("a", START, END)
    assert caught.value.offset == START
    assert "X-Amz" not in str(caught.value)
    with pytest.raises(StoreError, match="asks to wait"):
        store.info("a")
    assert len(proxy.requests) == 2


def test_nobody_waits_any_more(bucket: str, options: dict[str, Any], proxy: Proxy) -> None:
    """Tries end at once, long before the deadline, when the caller has lost interest, in a pause too."""
    store = open_store(bucket, options | {"deadline": 3600})
    proxy.faults = [status(500, times=ALWAYS)]
    with pytest.raises(StoreError, match="given up") as caught:
        store.read_view("a", START, END, wanted=lambda: len(proxy.requests) < 3)
    assert caught.value.offset == START
    assert len(proxy.requests) == 3
    proxy.faults = [status(429, retry_after=3000, times=ALWAYS)]
    with pytest.raises(StoreError, match="given up"):
        store.read_view("a", START, END, wanted=lambda: len(proxy.requests) < 5)


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("what", ["replaced", "gone"])
def test_objects_that_change_between_pieces(
    s3: Any, options: dict[str, Any], proxy: Proxy, what: str, pinned: bool
) -> None:
    """An object that is replaced by one of its size, or deleted, between two requests never mixes with the new one.

    That holds also where the caller does not say which version it wants.
    """
    direct = open_store(s3.bucket("change"), s3.options)
    direct.write("a", DATA[: 4 * MIB])
    store = open_store(direct.url, options)
    version = store.info("a").version

    def change(request: Request) -> Fault | None:
        if len(proxy.requests) == 2:
            return reset(3 * MIB)
        if len(proxy.requests) == 4:
            direct.delete("a")
            if what == "replaced":
                direct.write("a", DATA[4 * MIB : 8 * MIB])
        return None

    proxy.faults = change
    with pytest.raises(ObjectChanged if what == "replaced" else ObjectNotFound) as caught:
        store.read_view("a", 0, 4 * MIB, version=version if pinned else None)
    assert caught.value.offset == MIB
    assert caught.value.hint


@pytest.mark.parametrize(
    ("endpoint", "cause"),
    [("http://127.0.0.1:9", "refused"), ("http://no-such-host.invalid", "lookup")],
)
def test_servers_that_can_not_be_reached(s3: Any, endpoint: str, cause: str) -> None:
    """A refused connection, and a host name that does not resolve, are tried until the deadline, then told."""
    store = open_store("s3://bucket/x", s3.options | {"endpoint_url": endpoint, "deadline": 0.5})
    with pytest.raises(StoreError, match=rf"{cause}.* tries in ") as caught:
        store.read_view("a", 100, 200)
    assert (caught.value.shard, caught.value.offset) == ("s3://bucket/x/a", 100)
    assert "endpoint_url" in str(caught.value.hint)


def test_a_server_that_comes_back(s3: Any, bucket: str) -> None:
    """Reads that meet a server while it is away go on when it is there again."""
    with Proxy(s3.endpoint) as proxy:
        store = open_store(bucket, s3.options | {"endpoint_url": proxy.url, "deadline": 60})
        store.info("a")
        port = int(proxy.url.rpartition(":")[2])
    with ThreadPoolExecutor(1) as pool:
        asked: list[None] = []
        reading = pool.submit(store.read_view, "a", START, END, wanted=lambda: not asked.append(None))  # type: ignore[func-returns-value]
        while len(asked) < 6:
            threading.Event().wait(0.01)
        with Proxy(s3.endpoint, port=port):
            assert reading.result() == DATA[START:END]


@pytest.mark.parametrize("place", ["environment", "profile"])
@pytest.mark.parametrize("call", ["read_view", "info", "list"])
def test_expired_credentials_are_found_anew(
    s3: Any, bucket: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str, call: str
) -> None:
    """Credentials that expire while a store is in use are read again from where they came, which has new ones."""
    _without_aws(monkeypatch, tmp_path)
    for name in s3.environment if place == "environment" else ():
        monkeypatch.setenv(name, "")  # and take back at the end what `provide` sets

    def provide(key: str) -> None:
        if place == "environment":
            os.environ |= s3.environment | {"AWS_ACCESS_KEY_ID": key, "AWS_ENDPOINT_URL": proxy.url}
            return
        lines = ["[default]", f"aws_access_key_id={key}", f"aws_secret_access_key={s3.secret}", "region=us-east-1"]
        (tmp_path / "credentials").write_text("\n".join(lines))

    def answer(request: Request) -> Fault | None:
        if "Credential=stale/" not in request.headers["authorization"]:
            return None
        provide(s3.key)
        return status(400, error="ExpiredToken")

    provide("stale")
    store = open_store(bucket, {} if place == "environment" else {"endpoint_url": proxy.url})
    proxy.only = lambda method, path, span: True
    proxy.faults = answer
    if call == "read_view":
        assert store.read_view("a", START, END) == DATA[START:END]
    elif call == "info":
        assert store.info("a").size == len(DATA)
    else:
        assert [info.name for info in store.list()] == ["a"]
    assert len(proxy.requests) == 2


@pytest.mark.parametrize("code", ["ExpiredToken", "RequestExpired", "TokenRefreshRequired", "InvalidToken"])
def test_expired_credentials_without_new_ones(store: Store, proxy: Proxy, s3: Any, code: str) -> None:
    """Where a new client finds nothing better, the error says that the credentials expired, and shows none."""
    proxy.faults = [status(400, error=code, times=ALWAYS)]
    with pytest.raises(StoreError, match=code) as caught:
        store.read_view("a", START, END)
    assert "expired" in str(caught.value.hint)
    assert s3.secret not in repr(caught.value) + str(caught.value)
    assert len(proxy.requests) == 2


def test_requester_pays(s3: Any, bucket: str, proxy: Proxy) -> None:
    """requester_pays=True is said with each request, and with none otherwise."""
    for pays in (True, False):
        proxy.requests.clear()
        store = open_store(bucket, s3.options | {"endpoint_url": proxy.url, "requester_pays": pays})
        assert store.read_view("a", 0, 10) == DATA[:10]
        store.info("a")
        list(store.list())
        assert {each.headers.get("x-amz-request-payer") for each in proxy.requests} == {"requester" if pays else None}
        assert len(proxy.requests) == 3


def test_anonymous_requests_carry_nothing(s3: Any, bucket: str, proxy: Proxy) -> None:
    """anon=True sends no signature; the refusal by a server without public data names the object."""
    store = open_store(bucket, {"endpoint_url": proxy.url, "anon": True, "region": "us-east-1"})
    with pytest.raises(StoreError, match="403"):
        store.read_view("a", 0, 10)
    assert [("authorization" in each.headers, each.path) for each in proxy.requests] == [
        (False, f"/{bucket.removeprefix('s3://')}/a")
    ]


def test_the_bucket_in_the_host_name(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """path_style=False puts the bucket before the host of a custom endpoint, and leaves it out of the path."""
    for name in ("NO_PROXY", "no_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", proxy.url)  # so that no such host has to exist
    options = {"endpoint_url": "http://objects.invalid", "key": "a", "secret": "b", "path_style": False, "deadline": 1}
    with contextlib.suppress(StoreError):
        open_store("s3://bucket/x", options).read_view("a", 0, 10)
    assert proxy.requests[0].headers["host"] == "bucket.objects.invalid"
    assert proxy.requests[0].path == "http://bucket.objects.invalid/x/a"


def _without_aws(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(home / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(home / "config"))
