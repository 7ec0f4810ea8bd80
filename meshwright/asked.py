"""What the commands that search are asked alike: `plan` in each phase, `pareto`, `fits` and `fleet`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypedDict, cast

import click

from meshwright.commandline import Command, command
from meshwright.parsing import cuts_of

if TYPE_CHECKING:
    from planner.query.targets import Prices, Targets

LIMITS = ("max_step_s", "max_ttft_s", "min_tokens_per_s", "max_chips")


class Where(TypedDict):
    """Slices, as the functions behind the commands take them."""

    slices: tuple[str, ...]
    chips: tuple[str, ...]
    chip_counts: tuple[int, int | None] | None


class How(TypedDict):
    """What a step computes with, and how layouts are searched."""

    weights: str
    kv: str
    activations: str
    compute: str | None
    programs: tuple[str, ...]
    chip_file: str | None
    cuts: str
    workers: int | None


class Goals(TypedDict):
    """What is wanted, at which prices."""

    targets: Targets
    prices: Prices
    constants: str


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options that a command has of these, read: keywords of the functions behind the commands."""

    model: str
    where: Where
    how: How
    goals: Goals
    progress: str


def searching(*params: click.Parameter) -> Callable[[Callable[..., int]], Command]:
    """Make a function a command that gets the options which `Asked` has as that, and its others by name."""

    def made(run: Callable[..., int]) -> Command:
        @wraps(run)
        def read(**given: Any) -> int:
            shared = _asked(given)
            return run(shared, **given)

        return command(*params)(read)

    return made


def _asked(given: dict[str, Any]) -> Asked:
    """What is asked; takes it out of `given`."""
    from planner.query.targets import Targets

    cuts = cuts_of(given.pop("cuts"), given.pop("whole_axes"))
    targets = Targets(**{name: given.pop(name) for name in LIMITS if name in given})
    given.update(cuts=cuts, targets=targets)
    return Asked(
        model=given.pop("model"),
        where=cast(Where, _taken(Where, given)),
        how=cast(How, _taken(How, given)),
        goals=cast(Goals, _taken(Goals, given)),
        progress=given.pop("progress"),
    )


def _taken(keywords: type, given: dict[str, Any]) -> dict[str, Any]:
    return {name: given.pop(name) for name in keywords.__annotations__ if name in given}
