"""Doing the same to many things in several processes, with results in order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Thing = TypeVar("Thing")
Result = TypeVar("Result")
WORTH = 4
"""Fewer things than this are not worth a process."""


def in_parallel(things: Sequence[Thing], do: Callable[[Thing], Result], workers: int | None = None) -> Iterator[Result]:
    """What `do` makes of each thing, in order; the last ones, which are the longest, are started first.

    One process does it all where there are few things or one core, where processes cannot be forked (not on Linux),
    or where it would not be safe: other threads run. What is found is the same. `workers`: None: one per core.
    """
    workers = min(workers or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, len(things))
    forks = sys.platform == "linux" and threading.active_count() == 1
    if workers < 2 or len(things) < WORTH or not forks:
        yield from map(do, things)
        return
    context = multiprocessing.get_context("fork")  # what is imported and cached is there at once
    with ProcessPoolExecutor(workers, context, initializer=_ignore_interrupts) as pool:
        futures = [pool.submit(do, thing) for thing in reversed(things)][::-1]
        try:
            for future in futures:
                yield future.result()
        except BaseException:  # what is under way is of no use: an interrupt must not wait for it
            for process in list(pool._processes.values()):
                process.terminate()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _ignore_interrupts() -> None:
    """An interrupt is for the parent, which has what was found."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
