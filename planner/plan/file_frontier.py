"""What `pareto` finds, as typed values: the points of the frontier, which are the file's plans, and those beaten."""

from __future__ import annotations

from planner.plan.plan import Value

LATENCY, THROUGHPUT, COST = "latency", "throughput", "cost"


class Point(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The best layout of one slice and batch; `dollars_per_million_tokens` where its chip has a price.

    `best_of`: the objectives of which no candidate has a better value.
    """

    slice: str
    chips: int
    batch: int
    step_s: float
    tokens_per_s: float
    tokens_per_s_per_chip: float
    dollars_per_million_tokens: float | None = None
    best_of: tuple[str, ...] = ()


class Frontier(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`points`: one for each plan, in their order; `dominated`: candidates that some point beats, by latency.

    A point beats another that is no better in any of the `axes`. `missed`: candidates that miss a target.
    """

    axes: tuple[str, ...]
    points: tuple[Point, ...]
    dominated: tuple[Point, ...]
    missed: int
