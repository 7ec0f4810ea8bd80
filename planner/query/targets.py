"""Targets that plans must meet, objectives that rank them, and what a chip costs for an hour.

A target is one row of `TARGETS`, an objective one row of `OBJECTIVES`: options, checks, messages and docs follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Protocol

from mesh.chips import chip_names, closest
from mesh.errors import InputError

Prices = Mapping[str, float]
"""Dollars per chip and hour, by chip name."""
ANY_CHIP = "*"
"""The name under which a price of every chip stands."""


class Figures(Protocol):
    """The figures that targets judge, of one way to run; `ttft_s` is None of a decode step."""

    @property
    def step_s(self) -> float:
        """Seconds of a step."""

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token: of the whole prompt's prefill, and of whatever else precedes the token."""

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of the slice (or of all slices, when serving)."""

    @property
    def chips(self) -> int:
        """Chips that are used."""


@dataclass(frozen=True)
class Target:
    """One row of `TARGETS`.

    `field`: its name in `Targets`. `option`, `metavar`, `scale` and `about`: how a command line asks for it; the value
    that is typed is `scale` times the field's. `says` and `figure` word a limit and a value that is held against it.
    `most`: whether it is an upper limit; `whole`: whether it is a whole number. A shorter step of the same slice and
    batch never misses a target that a longer one meets: of each the shortest is held against it.
    """

    field: str
    option: str
    metavar: str
    scale: float
    about: str
    unit: str
    most: bool
    value: Callable[[Figures], float | None]
    says: Callable[[float], str]
    figure: Callable[[float], str]
    whole: bool = False

    def missed(self, limit: float, figures: Figures) -> bool:
        """Return whether the figures are beyond the limit; never where they have no such figure."""
        value = self.value(figures)
        return value is not None and (value > limit if self.most else value < limit)

    def short_of(self, figures: Figures) -> float:
        """A number that is the smaller, the better the target is met."""
        value = self.value(figures)
        return inf if value is None else value if self.most else -value


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"


TARGETS = (
    Target(
        "max_step_s", "max-step-ms", "MS", 1e3, "Of a step (fleet: of a decode step), at most.", "seconds", True,
        lambda f: f.step_s, lambda v: f"a step of at most {v * 1e3:g} ms", _ms,
    ),
    Target(
        "max_ttft_s", "max-ttft-ms", "MS", 1e3, "To the first token, at most (prefill, serve, fleet).", "seconds", True,
        lambda f: f.ttft_s, lambda v: f"a first token after at most {v * 1e3:g} ms", _ms,
    ),
    Target(
        "min_tokens_per_s", "min-tokens-per-s", "N", 1, "Of a slice (serve: output tokens), at least.",
        "tokens per second", False,
        lambda f: f.tokens_per_s, lambda v: f"at least {v:g} tokens/s", lambda v: f"{v:,.4g} tokens/s",
    ),
    Target(
        "max_chips", "max-chips", "N", 1, "Of a slice, at most.", "chips", True,
        lambda f: f.chips, lambda v: f"at most {v:g} chips", lambda v: f"{v:.0f} chips",
        whole=True,
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Targets:
    """The targets that plans must meet, in seconds of a step and to the first token, tokens/s, chips; None: no target.

    Raises `InputError` on a limit that is no number above 0.
    """

    max_step_s: float | None = None
    max_ttft_s: float | None = None
    min_tokens_per_s: float | None = None
    max_chips: int | None = None

    def __post_init__(self) -> None:
        for target, limit in self.given():
            if not (isfinite(limit) and limit > 0):
                raise InputError(f"{target.field} {limit:g}: expected a number of {target.unit} above 0", target.field)

    def given(self) -> list[tuple[Target, float]]:
        """The targets that are set, with their limits."""
        values = ((target, getattr(self, target.field)) for target in TARGETS)
        return [(target, limit) for target, limit in values if limit is not None]

    @property
    def words(self) -> tuple[str, ...]:
        """Each target that is set, in words."""
        return tuple(target.says(limit) for target, limit in self.given())

    def missed(self, figures: Figures) -> tuple[Target, ...]:
        """The targets that these figures miss."""
        return tuple(target for target, limit in self.given() if target.missed(limit, figures))

    def says(self, target: Target) -> str:
        """One target that is set, in words."""
        return target.says(dict(self.given())[target])


@dataclass(frozen=True)
class Merits:
    """The values that objectives rank by: seconds of a step or request, tokens/s per chip, $ per million tokens."""

    latency_s: float
    tokens_per_s_per_chip: float
    dollars_per_million_tokens: float = inf


@dataclass(frozen=True)
class Objective:
    """One row of `OBJECTIVES`: `key` gives what is to be small, first and second; the titles say it to people."""

    name: str
    key: Callable[[Merits], tuple[float, float]]
    title: str
    serving_title: str
    needs_prices: bool = False

    def rank(self, merits: Merits) -> tuple[float, float]:
        """The key to sort by, best first; first values that agree to 12 digits are equal."""
        first, second = self.key(merits)
        return float(f"{first:.12g}"), second


OBJECTIVES = {
    row.name: row
    for row in (
        Objective(
            "throughput",
            lambda m: (-m.tokens_per_s_per_chip, m.latency_s),
            "most tokens per second and chip first",
            "most output tokens per second and chip first",
        ),
        Objective(
            "latency",
            lambda m: (m.latency_s, -m.tokens_per_s_per_chip),
            "shortest step first",
            "shortest request first",
        ),
        Objective(
            "cost",
            lambda m: (m.dollars_per_million_tokens, m.latency_s),
            "cheapest tokens first",
            "cheapest output token first",
            needs_prices=True,
        ),
    )
}


def check_objective(name: str, prices: Prices) -> None:
    """Raise `InputError` on an objective that is not known, or that needs prices where there are none."""
    if name not in OBJECTIVES:
        raise InputError(f"objective '{name}' is not known; expected {', '.join(OBJECTIVES)}")
    if OBJECTIVES[name].needs_prices and not prices:
        raise InputError(f"objective '{name}' needs prices per chip and hour, such as 1.2 or v5e=1.2,v6e=2.7")


def check_prices(prices: Prices, chips: Iterable[str]) -> None:
    """Raise `InputError` on a price that is none or of no chip that is known, and where a chip has no price."""
    chips = tuple(dict.fromkeys(chips))
    for name, price in prices.items():
        if not (isfinite(price) and price > 0):
            given = f"{price:g}" if name == ANY_CHIP else f"{name}={price:g}"
            raise InputError(f"prices {given}: expected a price in dollars above 0", "prices")
    known = tuple(dict.fromkeys((*chip_names(), *chips, *map(str.lower, chips))))
    for name in prices:
        if name not in (*known, ANY_CHIP):
            raise InputError(f"prices {name}: no such chip; closest: {closest(name, known)}", "prices")
    missing = [name for name in chips if prices and price_of(prices, name) is None]
    if missing:
        raise InputError(f"prices: no price for {', '.join(missing)}; add {missing[0]}=DOLLARS", "prices")


def price_of(prices: Prices, chip: str) -> float | None:
    """Dollars per hour of one chip; None where it has no price."""
    return prices.get(chip, prices.get(chip.lower(), prices.get(ANY_CHIP)))


def dollars_per_million_tokens(price_per_chip_hour: float, tokens_per_s_per_chip: float) -> float:
    """Return the dollars that a million tokens cost on chips at this price per hour.

    >>> round(dollars_per_million_tokens(1.2, 1000.0), 4)
    0.3333
    """
    return price_per_chip_hour / 3600 / tokens_per_s_per_chip * 1e6
