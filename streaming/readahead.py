"""Threads that work ahead of the consumer, and give results in order.

>>> list(Readahead([Call(str, 0), Call(str, 1), Call(str, 2)], threads=2, ahead_bytes=1 << 20))
['0', '1', '2']

What happens, and must keep happening:

- A job is begun, done in parts, and ended.  All threads work on the parts of the oldest job that has any left, so that
  the next batch is there soon, and few batches are unfinished at a time.
- Jobs end in any order; their results are delivered in the order of the jobs.
- Jobs ahead are bounded by bytes: none is started while those that are started and not delivered hold more than
  `ahead_bytes`, one excepted, so that a job larger than the bound still passes.
- An error ends the iteration when its job's turn comes; what was to be delivered before it is delivered.  Of several
  parts that fail the first one's error counts.
- Leaving early (break, close, an exception in the consumer) cancels what has not started and waits for what has, so
  that no thread outlives the iterator.
"""

from __future__ import annotations

import heapq
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from threading import Condition, Lock, Thread
from typing import Any, Protocol

from .batch import size_of
from .own_threads import OURS, may_wait


class Job(Protocol):
    """A piece of work; begin, the parts and end are called once each, in this order, in any threads."""

    @property
    def parts(self) -> int:
        """How many parts it has; at least one."""

    def begin(self) -> None:
        """Get what the parts need, such as bytes."""

    def part(self, i: int) -> None:
        """Do one part; parts run at the same time."""

    def end(self) -> Any:
        """The result, when all parts are done."""


@dataclass
class Call:
    """A job of one part: a function of one argument."""

    function: Callable[[Any], Any]
    argument: Any
    parts: int = 1
    result: Any = None

    def begin(self) -> None:
        """Nothing is needed."""

    def part(self, i: int) -> None:  # noqa: ARG002  (there is only one)
        """Call the function."""
        self.result = self.function(self.argument)

    def end(self) -> Any:
        """What it returned."""
        return self.result


def run_here(job: Job) -> Any:
    """The result of a job, all of it done in this thread."""
    job.begin()
    for i in range(job.parts):
        job.part(i)
    return job.end()


class Readahead:
    """Runs jobs on `threads` threads ahead of the consumer; with 0 in the consumer's own, when their turn comes.

    `fetchers` more threads begin jobs, where that means to wait (for a network) rather than to work.
    """

    def __init__(
        self,
        jobs: Iterable[Job],
        *,
        threads: int,
        ahead_bytes: int,
        fetchers: int = 0,
        stop: Callable[[], None] = lambda: None,
    ) -> None:
        """`stop` is called when the iteration ends, so that jobs that wait for something wait no longer."""
        self._jobs = jobs
        self._stop = stop
        self._threads = threads
        self._fetchers = fetchers
        self._ahead_bytes = ahead_bytes
        self._waiting: deque[Future[Any]] = deque()

    @property
    def ready(self) -> bool:
        """Whether the next result need not be waited for."""
        return bool(self._waiting) and self._waiting[0].done()

    def __iter__(self) -> Iterator[Any]:
        return self.run()

    def run(self) -> Generator[Any]:
        """The results, in order; close the generator to leave early."""
        if self._threads == 0:
            try:
                yield from map(run_here, self._jobs)
            finally:
                self._stop()
            return
        work = Threads(self._threads, "decode")
        fetch = Threads(self._fetchers, "fetch") if self._fetchers else work
        waiting, jobs = self._waiting, enumerate(self._jobs)
        guess, more = 0, True

        def fill() -> None:
            nonlocal more
            while more and self._room(len(waiting), guess):
                number, job = next(jobs, (0, None))
                if job is None:
                    more = False
                else:
                    waiting.append(_start(number, job, fetch, work))

        try:
            fill()
            while waiting:
                result = waiting.popleft().result()
                guess = max(guess // 2, size_of(result))
                fill()  # so that threads are busy while the consumer is
                yield result
                del result  # or its memory would not be free for the next
                fill()
        finally:
            self._stop()
            for threads in {fetch, work}:
                threads.close()

    def _room(self, started: int, guess: int) -> bool:
        most = max(2, 2 * self._threads, self._fetchers)
        if guess == 0:  # nothing is known yet of how much a job holds
            return started < max(2, self._threads, self._fetchers)
        return started == 0 or (started < most and (started + 1) * guess <= self._ahead_bytes)


def _start(number: int, job: Job, fetch: Threads, work: Threads) -> Future[Any]:
    """Begin a job on `fetch`, and go on with its parts on `work`; the future has its result."""
    future: Future[Any] = Future()
    left, lock, failed = job.parts, Lock(), dict[int, BaseException]()

    def begin() -> None:
        try:
            job.begin()
        except BaseException as error:  # noqa: BLE001  (raised where the result is asked for)
            future.set_exception(error)
            return
        here = fetch is work  # the first part needs no other thread then
        for i in range(int(here), job.parts):
            work.submit(number, partial(part, i))
        if here:
            part(0)

    def part(i: int) -> None:
        nonlocal left
        try:
            job.part(i)
        except BaseException as error:  # noqa: BLE001  (raised where the result is asked for)
            failed[i] = error
        with lock:
            left -= 1
            last = left == 0
        if last:
            end()

    def end() -> None:
        try:
            if failed:
                raise failed[min(failed)]
            future.set_result(job.end())
        except BaseException as error:  # noqa: BLE001  (raised where the result is asked for)
            future.set_exception(error)

    fetch.submit(number, begin)
    return future


class Threads:
    """Threads that always take the task of the lowest number; of equal ones the first that was submitted."""

    def __init__(self, count: int, name: str) -> None:
        self._tasks = _Tasks()
        # Daemons, so that an iterator that is never closed does not keep the interpreter from ending; what is running
        # then is waited for all the same, or it would run into an interpreter that is being taken down.
        names = [f"{OURS}{name}_{i}" for i in range(count)]
        self._threads = [Thread(target=self._tasks.run, name=name, daemon=True) for name in names]
        self._end = weakref.finalize(self, _join, self._tasks, self._threads)
        for thread in self._threads:
            thread.start()

    def submit(self, number: int, task: Callable[[], None]) -> None:
        """Run `task`, which must not raise."""
        self._tasks.put(number, task)

    def close(self) -> None:
        """Forget what has not started, wait for what has unless that is for others to do, and end the threads."""
        self._end()


class _Tasks:
    def __init__(self) -> None:
        self._changed = Condition()
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._closed = False

    def put(self, number: int, task: Callable[[], None]) -> None:
        with self._changed:
            heapq.heappush(self._heap, (number, self._count, task))
            self._count += 1
            self._changed.notify()

    def run(self) -> None:
        while True:
            with self._changed:
                while not self._heap and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                task = heapq.heappop(self._heap)[2]
            task()
            del task

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._heap.clear()
            self._changed.notify_all()


def _join(tasks: _Tasks, threads: list[Thread]) -> None:
    tasks.close()
    for thread in threads:
        if may_wait() and thread.ident is not None:
            thread.join()
