"""Define the targets that plans must meet, the objectives that rank them, and prices of chips.

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
"""Name of a price that holds for every chip."""


class Figures(Protocol):
    """The figures by which targets are judged."""

    @property
    def step_s(self) -> float:
        """Seconds of a step."""

    @property
    def ttft_s(self) -> float | None:
        """Time to first token in seconds, from the prompt's prefill on; None for a decode step."""

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of the slice (or of all slices, when serving)."""

    @property
    def chips(self) -> int:
        """Number of chips in use."""


@dataclass(frozen=True)
class Target:
    """One kind of target, a row of `TARGETS`.

    `field` is its name in `Targets`. `option`, `metavar`, `scale` and `about` are for the command line, whose value is
    `scale` times the field's. `says` and `figure` put a limit and a value compared with it in words. `most` is true for
    an upper limit, `whole` for a whole number. A shorter step of the same slice and batch never misses a target that a
    longer one meets, so only the shortest of each is compared.
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
        """Return whether the figures are beyond the limit; false where they have no such figure."""
        value = self.value(figures)
        return value is not None and (value > limit if self.most else value < limit)

    def short_of(self, figures: Figures) -> float:
        """Return a number that is smaller, the better the target is met."""
        value = self.value(figures)
        return inf if value is None else value if self.most else -value


def _ms(seconds: float) -> str:
    """Return seconds as text in milliseconds."""
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
    """The limits that plans must meet: seconds of a step and to the first token, tokens/s, chips.

    None means no limit. Raises `InputError` on a limit that is not a number above 0.

    >>> Targets(max_step_s=0.005, max_chips=16).words
    ('a step of at most 5 ms', 'at most 16 chips')
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
        """Return the targets that are set, with their limits."""
        values = ((target, getattr(self, target.field)) for target in TARGETS)
        return [(target, limit) for target, limit in values if limit is not None]

    @property
    def words(self) -> tuple[str, ...]:
        """Each target that is set, in words."""
        return tuple(target.says(limit) for target, limit in self.given())

    def missed(self, figures: Figures) -> tuple[Target, ...]:
        """Return the targets that these figures miss."""
        return tuple(target for target, limit in self.given() if target.missed(limit, figures))

    def says(self, target: Target) -> str:
        """Return one target that is set, in words."""
        return target.says(dict(self.given())[target])


@dataclass(frozen=True)
class Merits:
    """The numbers by which objectives rank: seconds of a step or request, tokens/s per chip, dollars.

    `dollars_per_million_tokens` is infinite where there is no price.
    """

    latency_s: float
    tokens_per_s_per_chip: float
    dollars_per_million_tokens: float = inf


@dataclass(frozen=True)
class Objective:
    """One objective, a row of `OBJECTIVES`.

    `key` returns the numbers to minimise, first and second; the titles describe the order to people.
    """

    name: str
    key: Callable[[Merits], tuple[float, float]]
    title: str
    serving_title: str
    needs_prices: bool = False

    def rank(self, merits: Merits) -> tuple[float, float]:
        """Return the sort key, best first; first values that agree to 12 digits are equal."""
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
    """Raise `InputError` on an unknown objective, or one that needs prices where there are none."""
    if name not in OBJECTIVES:
        raise InputError(f"objective '{name}' is not known; expected {', '.join(OBJECTIVES)}")
    if OBJECTIVES[name].needs_prices and not prices:
        raise InputError(f"objective '{name}' needs prices per chip and hour, such as 1.2 or v5e=1.2,v6e=2.7")


def check_prices(prices: Prices, chips: Iterable[str]) -> None:
    """Raise `InputError` on a price that is not above 0 or of an unknown chip, and on a chip without a price."""
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
    """Return the dollars per hour of one chip, or None where it has no price.

    >>> price_of({"v5e": 1.2, "*": 3.0}, "v5e"), price_of({"v5e": 1.2}, "v6e")
    (1.2, None)
    """
    return prices.get(chip, prices.get(chip.lower(), prices.get(ANY_CHIP)))


def dollars_per_million_tokens(price_per_chip_hour: float, tokens_per_s_per_chip: float) -> float:
    """Return the dollars of a million tokens: price / 3600 / (tokens/s per chip) x 1e6.

    >>> round(dollars_per_million_tokens(1.2, 1000.0), 4)
    0.3333
    """
    return price_per_chip_hour / 3600 / tokens_per_s_per_chip * 1e6
