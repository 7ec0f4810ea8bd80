"""Measure how long a program takes on its devices."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax

REPEATS = 7
_untyped: Any = jax  # block_until_ready has no types


def median_seconds(run: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Return the median seconds of `repeats` runs after one warm-up run; each lasts until its results are ready.

    `run` starts the program and returns its results, a tree of JAX arrays.
    """
    _untyped.block_until_ready(run())
    return statistics.median(_seconds(run) for _ in range(repeats))


def _seconds(run: Callable[[], Any]) -> float:
    """Return the seconds of one run until its results are ready."""
    started = time.perf_counter()
    _untyped.block_until_ready(run())
    return time.perf_counter() - started
