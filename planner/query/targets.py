"""Targets that plans must meet, and what a chip costs for an hour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from mesh.chips import chip_names, closest
from mesh.errors import InputError
from mesh.slices import Slice

Prices = Mapping[str, float]
"""Dollars per chip and hour, by chip name."""
ANY_CHIP = "*"
"""The name under which a price of every chip stands."""


@dataclass(frozen=True)
class Targets:
    """What plans must meet; None: anything will do. Seconds of a step and to the first token, tokens/s of a slice.

    `max_ttft_s` is of the whole prompt's prefill (and whatever else precedes the first token, when serving).
    """

    max_step_s: float | None = None
    max_ttft_s: float | None = None
    min_tokens_per_s: float | None = None
    max_chips: int | None = None

    def __post_init__(self) -> None:
        for name, value, unit in self._given():
            if not (isfinite(value) and value > 0):
                raise InputError(f"{name} {value:g}: expected a number of {unit} above 0")

    def _given(self) -> Iterable[tuple[str, float, str]]:
        values = (
            ("--max-step-ms", self.max_step_s and self.max_step_s * 1e3, "milliseconds"),
            ("--max-ttft-ms", self.max_ttft_s and self.max_ttft_s * 1e3, "milliseconds"),
            ("--min-tokens-per-s", self.min_tokens_per_s, "tokens per second"),
            ("--max-chips", self.max_chips, "chips"),
        )
        return ((name, value, unit) for name, value, unit in values if value is not None)

    @property
    def words(self) -> tuple[str, ...]:
        """Each target as the command line says it."""
        return tuple(f"{name} {value:g}" for name, value, _ in self._given())

    def missed(self, phase: str, step_s: float, tokens_per_s: float, chips: int) -> tuple[str, ...]:
        """The targets that a plan of this phase misses, each as it was given. A prefill step is to the first token."""
        words = {word.split()[0]: word for word in self.words}
        found = {
            "--max-step-ms": self.max_step_s is not None and step_s > self.max_step_s,
            "--max-ttft-ms": phase == "prefill" and self.max_ttft_s is not None and step_s > self.max_ttft_s,
            "--min-tokens-per-s": self.min_tokens_per_s is not None and tokens_per_s < self.min_tokens_per_s,
            "--max-chips": self.max_chips is not None and chips > self.max_chips,
        }
        return tuple(words[name] for name, missed in found.items() if missed)


def check_prices(prices: Prices, chips: Iterable[str]) -> None:
    """Raise `InputError` on a price that is none or of no chip that is known, and where a chip has no price."""
    chips = tuple(dict.fromkeys(chips))
    for name, price in prices.items():
        if not (isfinite(price) and price > 0):
            given = f"{price:g}" if name == ANY_CHIP else f"{name}={price:g}"
            raise InputError(f"--price-per-chip-hour {given}: expected a price in dollars above 0")
    known = tuple(dict.fromkeys((*chip_names(), *chips, *map(str.lower, chips))))
    for name in prices:
        if name not in (*known, ANY_CHIP):
            raise InputError(f"--price-per-chip-hour {name}: no such chip; closest: {closest(name, known)}")
    missing = [name for name in chips if prices and price_of(prices, name) is None]
    if missing:
        raise InputError(f"--price-per-chip-hour: no price for {', '.join(missing)}; add {missing[0]}=DOLLARS")


def price_of(prices: Prices, chip: str) -> float | None:
    """Dollars per hour of one chip; None where it has no price."""
    return prices.get(chip, prices.get(chip.lower(), prices.get(ANY_CHIP)))


def dollars_per_million_tokens(price_per_chip_hour: float, tokens_per_s_per_chip: float) -> float:
    """What a million tokens cost on chips at this price.

    >>> round(dollars_per_million_tokens(1.2, 1000.0), 4)
    0.3333
    """
    return price_per_chip_hour / 3600 / tokens_per_s_per_chip * 1e6


def parse_prices(texts: Sequence[str]) -> dict[str, float]:
    """Prices of `--price-per-chip-hour`: one for every chip, or `chip=price` with commas between.

    >>> parse_prices(["v5e=1.2,v6e=2.7"]), parse_prices(["1.2"])
    ({'v5e': 1.2, 'v6e': 2.7}, {'*': 1.2})
    """
    found: dict[str, float] = {}
    for word in (part.strip() for text in texts for part in text.split(",")):
        name, equals, price = (piece.strip() for piece in word.rpartition("="))
        if (equals and not name) or not price:
            raise InputError(f"--price-per-chip-hour {word!r}: {_PRICE}")
        key = name.lower() or ANY_CHIP
        if key in found:
            raise InputError(f"--price-per-chip-hour {word!r}: a second price; {_PRICE}")
        try:
            found[key] = float(price)
        except ValueError:
            raise InputError(f"--price-per-chip-hour {word!r}: {_PRICE}") from None
    return found


_PRICE = "expected dollars, such as 1.2, or one for each chip, such as v5e=1.2,v6e=2.7"


def in_order(slices: Iterable[Slice]) -> list[Slice]:
    """Slices by chips and name: an order that does not depend on how they were asked for."""
    return sorted(slices, key=lambda s: (s.chips, s.name))
