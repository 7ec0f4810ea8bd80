"""Doing the same to many things in several processes, with results in order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Thing = TypeVar("Thing")
Result = TypeVar("Result")
WORTH = 4
"""Fewer things than this are not worth a process."""


def in_parallel(
    things: Sequence[Thing],
    do: Callable[[Thing], Result],
    workers: int | None = None,
    work: Callable[[Thing], float] | None = None,
) -> Iterator[Result]:
    """Yield `do` of each thing, in order; things of the most `work` are started first (None: the last ones).

    An interrupt ends it: what other processes have ready still comes, without what is not, and then the interrupt.
    One process does it all where there are few things or one core, where processes cannot be forked (not on Linux),
    or where it would not be safe: other threads run, as those of JAX do. What is found is the same. `workers`: None:
    one per core.
    """
    workers = min(_processes(workers), len(things))
    if workers < 2 or len(things) < WORTH:
        yield from map(do, things)
        return
    with _pool(workers) as pool:
        last_first = range(len(things) - 1, -1, -1)
        first = sorted(last_first, key=lambda i: -work(things[i])) if work else last_first
        begun = {i: pool.submit(do, things[i]) for i in first}
        pending = deque(begun[i] for i in range(len(things)))
        try:
            while pending:
                result = pending[0].result()
                pending.popleft()
                yield result
        except BaseException as error:  # what is under way is of no use: an interrupt must not wait for it
            ready = [one.result() for one in pending if one.done() and not one.exception()]
            if pending:  # else all is done, and whoever asked has stopped asking
                for process in list(pool._processes.values()):
                    process.terminate()
                pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, KeyboardInterrupt):
                yield from ready
            raise


@contextmanager
def meanwhile(
    do: Callable[[Thing], Result], thing: Thing, workers: int | None = None
) -> Iterator[Callable[[], Result]]:
    """Start `do` of one thing in another process, and give a function that waits for the result, or makes it here."""
    if _processes(workers) < 2:
        yield lambda: do(thing)
        return
    with _pool(1) as pool:
        yield pool.submit(do, thing).result


def _processes(workers: int | None) -> int:
    """Return how many processes may run: one where forks are impossible (not on Linux) or unsafe (threads)."""
    forks = sys.platform == "linux" and threading.active_count() == 1 and "jax" not in sys.modules
    return (workers or len(os.sched_getaffinity(0))) if forks else 1


def _pool(workers: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("fork")  # what is imported and cached is there at once
    return ProcessPoolExecutor(workers, context, initializer=_ignore_interrupts)


def _ignore_interrupts() -> None:
    """An interrupt is for the parent, which has what was found."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
