"""Brute force's answers on the toy problems of the default tests, kept in tests/cases/bruteforce.

A slow test computes them again. Where prices change on purpose, `PYTHONPATH=tests python -m oracles.answers` writes
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
from oracles import bruteforce

from planner.search.problem import Problem, layout_key
from planner.search.search import search
from strategies.models.models import Model

FOLDER = Path(__file__).parents[1] / "cases" / "bruteforce"
TWO_AXES = ("v5e:2x2", "v5p:2x2x1")
CASES = [(1, 180), (1, 4), (1, 153), (1, 1), (2, 23), (2, 78)]
"""(layer groups, seed), on two mesh axes."""
TOP = 5
SHARES = (None, 0.0, 0.3, 0.7)
"""Of the HBM between the least that fits and what the fastest layout takes; with None it never binds."""


class Best(msgspec.Struct, frozen=True):
    """One of the best layouts: its seconds, its bytes per device, and what tells it from others."""

    step_s: float
    total_bytes: float
    layout: str


class Answer(msgspec.Struct, frozen=True):
    """The best layouts within an HBM of so many bytes, best first."""

    usable_bytes: float
    best: tuple[Best, ...]


def two_axes(groups: int, seed: int) -> tuple[Problem, Model]:
    """A toy problem on two mesh axes."""
    return bruteforce.toy_case(seed, TWO_AXES, groups)


def computed(problem: Problem, orders: str = "told apart", shares: Sequence[float | None] = SHARES) -> list[Answer]:
    """The best layouts of the whole product: with HBM that never binds, that little fits, and some between."""
    oracle, (batch,) = bruteforce.Oracle(problem, orders), problem.work.batches
    fastest = oracle.best(batch, 1e15, 1)
    assert fastest, "a toy problem without any layout tests nothing"
    least_bytes = search(replace(problem, usable_bytes=0.0), 1).least_bytes[batch]
    found = []
    for share in shares:
        usable = 1e15 if share is None else least_bytes + (fastest[0].total_bytes - least_bytes) * share + 1
        best = [Best(c.step_s, c.total_bytes, str(layout_key(c, problem))) for c in oracle.best(batch, usable, TOP)]
        found.append(Answer(usable, tuple(best)))
    return found


def path_of(groups: int, seed: int) -> Path:
    """The file of a case."""
    return FOLDER / f"groups-{groups}-seed-{seed}.json"


def kept(groups: int, seed: int) -> list[Answer]:
    """What a case's file says."""
    return msgspec.json.decode(path_of(groups, seed).read_bytes(), type=list[Answer])


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for case in CASES:
        answers = msgspec.json.encode(computed(two_axes(*case)[0]))
        path_of(*case).write_bytes(msgspec.json.format(answers, indent=1) + b"\n")
