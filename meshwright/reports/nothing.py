"""The message and the tables where no layout fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mesh.version import VERSION
from meshwright.reports.plan import rejected_table
from meshwright.reports.text import Block
from planner.best.nothing import NothingFits
from planner.plan.planfile import SCHEMA


def line(nothing: NothingFits) -> str:
    """Return the reason and the smallest slice that would do; in serving, where no layout was ruled out, the reason."""
    if not nothing.rejected and nothing.smallest is None:
        return str(nothing)
    larger = f"the smallest slice of that chip on which it fits is {nothing.smallest}"
    return f"{nothing}; {larger if nothing.smallest else 'no larger slice of that chip does either'}"


def as_json(nothing: NothingFits) -> dict[str, Any]:
    """Return the reasons as JSON, in the form of a plan file without plans."""
    return {
        "schema": SCHEMA,
        "tool_version": VERSION,
        "plans": [],
        "rejected": nothing.rejected,
        "search": nothing.search,
        "nothing_fits": {"why": str(nothing), "smallest_slice": nothing.smallest},
    }


def blocks(nothing: NothingFits) -> Sequence[Block]:
    """Return the rejected groups of assignments."""
    return [rejected_table(nothing.rejected)]
