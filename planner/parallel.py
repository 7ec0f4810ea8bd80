"""Run one function on many items in several forked processes, with the results in order."""

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
"""The least number of items for which processes are started."""


def in_parallel(
    things: Sequence[Thing],
    do: Callable[[Thing], Result],
    workers: int | None = None,
    work: Callable[[Thing], float] | None = None,
) -> Iterator[Result]:
    """Yield `do(thing)` for each thing, in the order of `things`.

    Things with the most `work` start first; without `work`, the last ones do. `workers` is the number of processes;
    None means one per core that this process may use. Everything runs in this process if there are fewer than
    `WORTH` things or two workers, if the system is not Linux, or if forking is unsafe because other threads run or
    JAX is imported. The results are the same either way.

    After a `KeyboardInterrupt` in the parent the results that are ready are still yielded, the others are dropped,
    and the interrupt is raised again.
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
            ready = [future.result() for future in pending if future.done() and not future.exception()]
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
    """Start `do(thing)` in another process and give the body of the `with` a function that waits for the result.

    If no process can be forked, `do` runs in this one when that function is called.
    """
    if _processes(workers) < 2:
        yield lambda: do(thing)
        return
    with _pool(1) as pool:
        yield pool.submit(do, thing).result


def _processes(workers: int | None) -> int:
    """Return how many processes may run: one if forking is impossible (not on Linux) or unsafe (threads, JAX)."""
    forks = sys.platform == "linux" and threading.active_count() == 1 and "jax" not in sys.modules
    return (workers or len(os.sched_getaffinity(0))) if forks else 1


def _pool(workers: int) -> ProcessPoolExecutor:
    """Return a pool of forked processes that ignore interrupts."""
    context = multiprocessing.get_context("fork")  # what is imported and cached is there at once
    return ProcessPoolExecutor(workers, context, initializer=_ignore_interrupts)


def _ignore_interrupts() -> None:
    """Ignore interrupts in a worker: the parent handles them, because it holds the results."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
