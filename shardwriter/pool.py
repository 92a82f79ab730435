"""Worker processes that run functions of this package.

>>> with WorkerPool(4) as pool:
...     for result in pool.map(write_shard, jobs):
...         ...

Plain child processes that talk over pipes, rather than multiprocessing's: these never import the program's main module
again, so that a script needs no `if __name__ == "__main__"`, and they work the same in notebooks.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.context import set_spawning_popen
from types import FrameType, TracebackType
from typing import IO, Any, Final, Self, TypeVar, cast

from .errors import ShardError

Job = TypeVar("Job")
Result = TypeVar("Result")

_START: Final = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); from shardwriter.pool import serve; serve()"
)
_PATIENCE: Final = 5.0
"""Seconds that a worker has to clean up before it is killed."""


class WorkerPool:
    """`count` processes, started as they are needed and ended with the block."""

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="shardwriter")
        self._in_flight = 2 * count
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._all: list[_Worker] = []
        self._lock = threading.Lock()
        self._closed = False

    def map(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        """Results in the order of `jobs`, of which at most two a worker are taken ahead.

        `function` is a module-level function, jobs and results can be pickled.  An exception of the function is raised
        here; ShardError where a worker dies.
        """
        pending: deque[Future[Result]] = deque()
        try:
            for job in jobs:
                pending.append(self._threads.submit(self._call, function, job))
                while len(pending) >= self._in_flight or (pending and pending[0].done()):
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._all:
            if kind is None:
                worker.requests.close()
            else:
                worker.process.terminate()
        for worker in self._all:
            worker.end()
        # The threads waited for answers of processes that have ended now.
        self._threads.shutdown(wait=True)
        for worker in self._all:
            worker.close()

    def _call(self, function: Callable[[Job], Result], job: Job) -> Result:
        try:
            worker = self._idle.get_nowait()
        except queue.Empty:
            worker = self._start()
        done, value = worker.ask((function, job))
        self._idle.put(worker)
        if not done:
            raise value
        return value  # type: ignore[no-any-return]

    def _start(self) -> _Worker:
        with self._lock:
            if self._closed:
                raise ShardError("the workers are being ended")
            self._all.append(_Worker())
            return self._all[-1]


class _Worker:
    """One process and the two pipes to it."""

    def __init__(self) -> None:
        # A process group of its own: Ctrl-C reaches the parent alone, which then ends the workers in order.
        self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and code
            [sys.executable, "-c", _START], stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
        )
        self.requests = cast(IO[bytes], self.process.stdin)
        self.answers = cast(IO[bytes], self.process.stdout)
        with contextlib.suppress(OSError):  # if it died at once, the first question finds out
            pickle.dump(sys.path, self.requests)

    def ask(self, question: object) -> tuple[bool, Any]:
        """(True, result) or (False, exception).  Raises ShardError where the process is gone."""
        try:
            # Stores keep their credentials only in a pickle that goes to a child; this one goes nowhere else.
            set_spawning_popen(self.process)  # type: ignore[arg-type]
            try:
                pickle.dump(question, self.requests, pickle.HIGHEST_PROTOCOL)
            finally:
                set_spawning_popen(None)
            self.requests.flush()
            answer: tuple[bool, Any] = pickle.load(self.answers)  # noqa: S301 - from a process of our own
        except (OSError, EOFError, pickle.UnpicklingError):
            code = self.end()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            raise ShardError(f"worker process {self.process.pid} {how}", hint="is there enough memory?") from None
        return answer

    def end(self) -> int:
        """Wait for the end of the process, kill it where that takes too long; its exit code."""
        try:
            return self.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def close(self) -> None:
        """Close the pipes of a process that has ended."""
        for pipe in (self.requests, self.answers):
            with contextlib.suppress(OSError):
                pipe.close()


def serve() -> None:
    """Run the functions that come over standard input, until it ends; what a worker process does."""
    signal.signal(signal.SIGTERM, _leave)
    # What anything prints goes to standard error; answers have the pipe for themselves.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # The parent closes the pipe, or is gone.
    with answers, contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            function, job = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started this one
            try:
                answer: tuple[bool, Any] = (True, function(job))
            except Exception as error:  # noqa: BLE001 - raised again in the parent
                answer = (False, _portable(error))
            pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
            answers.flush()


def _portable(error: Exception) -> Exception:
    """The error itself where it survives pickling, else its text."""
    try:
        return error if isinstance(pickle.loads(pickle.dumps(error)), type(error)) else ShardError(str(error))  # noqa: S301
    except Exception:  # noqa: BLE001 - whatever the error's own code does
        return ShardError(f"{type(error).__name__}: {error}")


def _leave(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise SystemExit(128 + signum)
