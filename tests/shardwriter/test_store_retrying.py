"""When a request is tried again, what for, and after how long."""

from __future__ import annotations

import random
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter.errors import ObjectChanged, ObjectNotFound, StoreError
from shardwriter.store.fsspec_client import FsspecClient
from shardwriter.store.ranges import PIECE, Range
from shardwriter.store.refused import seconds_to_wait
from shardwriter.store.retrying import FEW, Again, Failure, Pauses, Tries
from shardwriter.store.versions import if_match, version_of

BUSY = Failure(StoreError("the server answered 429"), again=True, busy=True)
FAILED = Failure(StoreError("broken"), again=True)
MOMENT = datetime(1994, 11, 6, 8, 49, 37, 999_000, tzinfo=UTC)


@given(st.integers(0, 1 << 40), st.integers(1, 5 * PIECE), st.lists(st.sampled_from(["ok", "broken", "busy"])))
def test_ranges_come_in_pieces_after_a_failure(start: int, length: int, answers: list[str]) -> None:
    """Whatever fails when, the bytes are right, what came is not asked for again, and failures make requests small."""
    asked: list[tuple[int, int, str]] = []
    content = bytes(range(251)) * (length // 251 + 1)

    def get(low: int, high: int) -> memoryview:
        answer = answers.pop(0) if answers else "ok"
        asked.append((low, high, answer))
        if answer == "ok":
            return memoryview(content)[low - start : high - start]
        raise Again(BUSY if answer == "busy" else FAILED)

    span = Range(start, start + length)
    while True:
        try:
            view = span.read(get)
            break
        except Again:
            assert span.at == asked[-1][0]
    assert view == memoryview(content)[:length]
    assert view.readonly
    came = [(low, high) for low, high, answer in asked if answer == "ok"]
    assert [low for low, _ in came] == [start, *(high for _, high in came[:-1])]
    failed = False
    for low, high, answer in asked:
        assert high - low <= PIECE if failed else (low, high) == (start, start + length)
        failed = failed or answer == "broken"


def test_doubtful_failures_are_tried_a_few_times() -> None:
    """What may be final is tried three times, however late the deadline is; so are writes, which end at no deadline."""
    for failure, most in ((Failure(StoreError("odd"), again=True, doubtful=True), None), (FAILED, FEW)):
        count = 0

        def attempt(failure: Failure = failure) -> None:
            nonlocal count
            count += 1
            raise Again(failure)

        with pytest.raises(StoreError, match="3 tries in"):
            Tries(Pauses(), deadline=3600, most=most).until_done(attempt)
        assert count == 3


def test_a_pause_is_asked_for_once() -> None:
    """Of many requests that a busy server refuses at once, one finds out for how long, and the pause holds for all."""
    pauses = Pauses()
    sent = time.monotonic()
    asking, answered = threading.Event(), threading.Event()
    asked = 0

    def ask() -> float:
        nonlocal asked
        asked += 1
        asking.set()
        answered.wait(10)
        return 1000.0

    thread = threading.Thread(target=pauses.refused, args=(sent, BUSY, ask))
    thread.start()
    asking.wait(10)
    pauses.refused(time.monotonic(), BUSY, ask)  # while the other thread is at it
    answered.set()
    thread.join()
    pauses.refused(sent, BUSY, ask)  # of a request that was under way
    assert asked == 1
    assert 900 < pauses.left() <= 1000
    with pytest.raises(StoreError, match=r"answered 429, and asks to wait for \d+ s, past the deadline of 5 s"):
        Tries(pauses, deadline=5).until_done(lambda: pytest.fail("no request may be sent"))
    with pytest.raises(StoreError, match="asks to wait"):
        Tries(pauses, deadline=5, most=FEW).until_done(lambda: pytest.fail("no request may be sent"))
    pauses.refused(time.monotonic(), BUSY, ask)  # of a request that was sent all the same
    assert asked == 2


def test_a_server_that_does_not_say_is_not_asked_at_once_again() -> None:
    """Without an answer there is no pause, and the next refusal asks no second time."""
    pauses = Pauses()
    asked: list[None] = []
    for _ in range(3):
        pauses.refused(time.monotonic(), BUSY, lambda: asked.append(None))
    assert len(asked) == 1
    assert pauses.left() == 0


def test_a_question_that_fails_blocks_no_other() -> None:
    """An error while asking leaves the pauses usable."""
    pauses = Pauses()
    with pytest.raises(ZeroDivisionError):
        pauses.refused(time.monotonic(), BUSY, lambda: 1 / 0)
    pauses.refused(time.monotonic(), Failure(BUSY.error, True, busy=True, retry_after=500.0), lambda: None)
    assert pauses.left() > 400


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": " 0 "}, 0.0),
        ({"RETRY-AFTER": "Sun, 06 Nov 1994 08:49:37 GMT"}, 0.0),
        ({"Retry-After": "Sun, 06 Nov 1994 08:49:37 GMT", "Date": "Sun, 06 Nov 1994 08:49:30 GMT"}, 7.0),
        ({"Retry-After": "-1"}, None),
        ({"Retry-After": "²"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": ""}, None),
        ({}, None),
    ],
)
def test_retry_after_headers(headers: dict[str, str], seconds: float | None) -> None:
    """Retry-After is a number of seconds or a date, compared with the server's clock; anything else says nothing."""
    assert seconds_to_wait(headers) == seconds


def test_retry_after_dates_without_a_clock() -> None:
    """A date without the server's own time is compared with ours."""
    soon = (datetime.now(UTC) + timedelta(seconds=100)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    seconds = seconds_to_wait({"Retry-After": soon})
    assert seconds is not None
    assert 0 < seconds <= 100


@pytest.mark.parametrize(
    ("tag", "modified", "like", "version"),
    [
        ('"v1"', MOMENT, None, '"v1"'),
        ('W/"v1"', MOMENT, None, "modified:1994-11-06T08:49:37"),
        (None, MOMENT, None, "modified:1994-11-06T08:49:37"),
        (None, datetime.fromtimestamp(0, UTC), None, None),
        (None, None, None, None),
        ('"v1"', MOMENT, "modified:1994-11-06T08:49:36", "modified:1994-11-06T08:49:37"),
        ('W/"v1"', MOMENT, '"v0"', None),
        ('"v1"', None, '"v0"', '"v1"'),
    ],
)
def test_versions(tag: str | None, modified: datetime | None, like: str | None, version: str | None) -> None:
    """A version is the strong ETag, else the last change in seconds; a reply is compared by the kind that is known."""
    assert version_of(tag, modified, like) == version


def test_only_tags_are_sent() -> None:
    """If-Match carries an ETag, and never the time of a change."""
    assert [if_match(v) for v in (None, '"v1"', "modified:1994-11-06T08:49:37")] == [None, '"v1"', None]


def test_errors_of_other_clients() -> None:
    """What the errors of botocore and aiohttp tell is understood: codes, statuses and Retry-After."""
    from aiohttp import ClientConnectionError, ClientResponseError, RequestInfo
    from botocore.exceptions import ClientError, EndpointConnectionError
    from fsspec.implementations.memory import MemoryFileSystem
    from multidict import CIMultiDict, CIMultiDictProxy
    from s3fs.errors import translate_boto_error
    from yarl import URL

    client = FsspecClient(MemoryFileSystem(), "/x")
    info = RequestInfo(URL("http://h"), "GET", CIMultiDictProxy(CIMultiDict()), URL("http://h"))

    def boto(code: str, status: int, **headers: str) -> Exception:
        reply = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers}}
        found = translate_boto_error(ClientError(reply, "GetObject"))
        assert isinstance(found, Exception)
        return found

    def web(status: int, **headers: str) -> Exception:
        return ClientResponseError(info, (), status=status, headers=CIMultiDict(headers))

    for error in (boto("SlowDown", 503, **{"retry-after": "7"}), web(429, **{"Retry-After": "7"})):
        failure = client.explain(error)
        assert (failure.again, failure.busy, failure.doubtful, failure.retry_after) == (True, True, False, 7.0)
    lost = (
        ClientConnectionError("x"),
        ConnectionResetError(),
        TimeoutError(),
        EndpointConnectionError(endpoint_url="h"),
    )
    for error in (boto("InternalError", 500), web(502), *lost):
        failure = client.explain(error)
        assert (failure.again, failure.busy, failure.doubtful) == (True, False, False)
    assert client.explain(boto("ExpiredToken", 400)).expired
    for error in (boto("AccessDenied", 403), web(401), web(405), ValueError("x")):
        assert not client.explain(error).again
    assert isinstance(client.explain(web(404)).error, ObjectNotFound)
    assert isinstance(client.explain(web(412)).error, ObjectChanged)
    assert client.explain(OSError("who knows")).doubtful


def test_the_users_random_numbers_are_left_alone() -> None:
    """Pauses are random, but take nothing from Python's global generator, which a trainer may have seeded."""
    random.seed(5)
    before = random.getstate()
    failures = iter([True, True, False])

    def attempt() -> str:
        if next(failures):
            raise Again(Failure(StoreError("not now"), again=True))
        return "done"

    assert Tries(Pauses(), deadline=30.0).until_done(attempt) == "done"
    assert random.getstate() == before
