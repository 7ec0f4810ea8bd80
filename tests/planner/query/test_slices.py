"""Which slices a question is about, and the targets and prices that plans are held to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from oracles.torus import legal_slices

from mesh.errors import InputError
from meshwright.commandline import chip_range
from meshwright.commandline import prices as parse_prices
from planner.query.slices import chosen_slices, range_text
from planner.query.targets import Targets, check_prices, dollars_per_million_tokens, price_of


def names(*args: object, **options: object) -> list[str]:
    """The names of the slices that are chosen."""
    return [slice_.name for slice_ in chosen_slices(*args, **options)]  # type: ignore[arg-type]


def test_a_chip_brings_every_legal_slice_in_the_range() -> None:
    """Ends count, each slice comes once, named ones first."""
    assert names(["v5e:16x16"], ["v5e"], (16, 64)) == ["v5e:16x16", "v5e:4x4", "v5e:4x8", "v5e:8x8"]
    assert names(["v5e:4x4"], ["v5e"], (16, 16)) == ["v5e:4x4"]
    assert names((), ["v5p"]) == [slice_.name for slice_ in legal_slices("v5p")]
    assert names((), ["v5e", "v6e"], (1, 4)) == ["v5e:1x1", "v5e:2x2", "v6e:1x1", "v6e:2x2"]


def test_the_most_chips_leaves_larger_slices_out() -> None:
    """`most_chips` is a target, so a range that holds some is fine; named slices stay for the target to rule out."""
    assert names((), ["v5e"], (8, None), most_chips=16) == ["v5e:2x4", "v5e:4x4"]


@pytest.mark.parametrize("text", ["4..256", "16", "64..", "..8"])
def test_a_range_is_read_as_it_is_written(text: str) -> None:
    """What `--chips` takes is what errors print, but for the first end."""
    assert range_text(chip_range(text)) == text.replace("..8", "1..8")


BAD = {
    "--chips '256..4': expected the smaller number first": lambda: chip_range("256..4"),
    "--chips '0..4': expected the smaller number first": lambda: chip_range("0..4"),
    "--chips 'many': expected a number of chips or a range": lambda: chip_range("many"),
    "--chips '..': expected a number of chips or a range": lambda: chip_range(".."),
    "chip_counts 3: v5e has no slice of so many; it has 1, 4, 8": lambda: names((), ["v5e"], (3, 3)),
    "chips 'v9': no such chip; closest: v4": lambda: names((), ["v9"]),
    "chip_counts 4..8: of which chip?": lambda: names(["v5e:4x4"], (), (4, 8)),
    "no slice given; expected at least one": lambda: names(),
    "max_step_s 0: expected a number of seconds above 0": lambda: Targets(max_step_s=0.0),
    "max_ttft_s nan: expected a number of seconds": lambda: Targets(max_ttft_s=float("nan")),
    "min_tokens_per_s -1: expected a number of tokens": lambda: Targets(min_tokens_per_s=-1),
    "max_chips 0: expected a number of chips above 0": lambda: Targets(max_chips=0),
    "max_chips 4 and 8..16 chips contradict each other": lambda: names((), ["v5e"], (8, 16), most_chips=4),
    "max_chips 2: no slice of v4 is within that": lambda: names((), ["v4"], most_chips=2),
    "prices v5f: no such chip; closest: v5p, v5e": lambda: check_prices({"v5f": 1.0}, ["v5e"]),
    "prices -1: expected a price": lambda: check_prices(parse_prices(["-1"]), ["v5e"]),
    "prices v5e=0: expected a price": lambda: check_prices({"v5e": 0.0}, ["v5e"]),
    "prices: no price for v6e; add v6e=DOLLARS": lambda: check_prices({"v5e": 1.0}, ["v5e", "v6e"]),
    "--price-per-chip-hour 'v5e=x': expected dollars": lambda: parse_prices(["v5e=x"]),
    "--price-per-chip-hour '=1': expected dollars": lambda: parse_prices(["=1"]),
    "--price-per-chip-hour 'v5e=2': a second price": lambda: parse_prices(["v5e=1,v5e=2"]),
}


@pytest.mark.parametrize("says", BAD)
def test_bad_input_names_the_value_and_what_would_work(says: str) -> None:
    """Each gets one line of its own."""
    made: Callable[[], object] = BAD[says]
    with pytest.raises(InputError) as caught:
        made()
    assert str(caught.value).startswith(says)


@dataclass(frozen=True)
class Run:
    """The figures of a way to run; without a first token it is a decode step's."""

    step_s: float
    tokens_per_s: float
    chips: int
    ttft_s: float | None = None


def test_every_target_is_missed_alone() -> None:
    """A plan misses what it exceeds, and only that; the first token is a prefill's."""
    targets = Targets(max_step_s=0.02, max_ttft_s=0.5, min_tokens_per_s=1000.0, max_chips=16)
    step, first, tokens, chips = targets.words
    assert (step, first) == ("a step of at most 20 ms", "a first token after at most 500 ms")
    assert (tokens, chips) == ("at least 1000 tokens/s", "at most 16 chips")

    def missed(run: Run) -> list[str]:
        return [targets.says(target) for target in targets.missed(run)]

    assert missed(Run(0.02, 1000.0, 16)) == []
    assert missed(Run(0.6, 1000.0, 16)) == [step]
    assert missed(Run(0.6, 999.0, 16, ttft_s=0.6)) == [step, first, tokens]
    assert missed(Run(0.01, 1000.0, 32)) == [chips]
    assert Targets().missed(Run(1e9, 0.0, 10**6)) == ()


def test_a_million_tokens_cost_what_the_chip_earns_in_that_time() -> None:
    """1000 tokens per second and chip: a million take 1000 chip-seconds, at 3.6 dollars per hour one dollar."""
    assert dollars_per_million_tokens(3.6, 1000.0) == pytest.approx(1.0)


def test_a_price_of_every_chip_stands_in_for_its_own() -> None:
    """A chip's own price counts first."""
    prices = parse_prices(["2.5", "v5e=1.2"])
    assert (price_of(prices, "v5e"), price_of(prices, "v6e"), price_of({"v5e": 1.0}, "v6e")) == (1.2, 2.5, None)


def test_a_price_finds_the_chip_of_a_chip_file_whatever_its_letters() -> None:
    """Options are read in small letters; a chip of one's own may be named in others."""
    prices = parse_prices(["MyTPU=2,v6e=3"])
    check_prices(prices, ["MyTPU"])
    assert price_of(prices, "MyTPU") == 2.0
