"""Timing: the seconds that a program takes on the devices that it runs on."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax

REPEATS = 7
_untyped: Any = jax  # what waits has no types


def median_seconds(run: Callable[[], Any], repeats: int = REPEATS) -> float:
    """The median of `repeats` runs, each until its results are ready, after one that is not counted."""
    _untyped.block_until_ready(run())
    return statistics.median(_seconds(run) for _ in range(repeats))


def _seconds(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    _untyped.block_until_ready(run())
    return time.perf_counter() - started
