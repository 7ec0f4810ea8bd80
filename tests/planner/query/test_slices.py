"""Which slices a question is about, and the targets and prices that plans are held to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mesh.errors import InputError
from mesh.slices import legal_slices
from planner.query.slices import chip_range, chosen_slices, range_text
from planner.query.targets import Targets, check_prices, dollars_per_million_tokens, parse_prices, price_of


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
    "--chips 3: v5e has no slice of so many; it has 1, 4, 8": lambda: names((), ["v5e"], (3, 3)),
    "--chip 'v9': no such chip; closest: v4": lambda: names((), ["v9"]),
    "--chips 4..8: of which chip?": lambda: names(["v5e:4x4"], (), (4, 8)),
    "no slice given; expected at least one": lambda: names(),
    "--max-step-ms 0: expected a number of milliseconds above 0": lambda: Targets(max_step_s=0.0),
    "--max-ttft-ms nan: expected a number of milliseconds": lambda: Targets(max_ttft_s=float("nan")),
    "--min-tokens-per-s -1: expected a number of tokens": lambda: Targets(min_tokens_per_s=-1),
    "--max-chips 0: expected a number of chips above 0": lambda: Targets(max_chips=0),
    "--max-chips 4 and --chips 8..16 contradict each other": lambda: names((), ["v5e"], (8, 16), most_chips=4),
    "--max-chips 2: no slice of v4 is within that": lambda: names((), ["v4"], most_chips=2),
    "--price-per-chip-hour v5f: no such chip; closest: v5p, v5e": lambda: check_prices({"v5f": 1.0}, ["v5e"]),
    "--price-per-chip-hour -1: expected a price": lambda: check_prices(parse_prices(["-1"]), ["v5e"]),
    "--price-per-chip-hour v5e=0: expected a price": lambda: check_prices({"v5e": 0.0}, ["v5e"]),
    "--price-per-chip-hour: no price for v6e; add v6e=DOLLARS": lambda: check_prices({"v5e": 1.0}, ["v5e", "v6e"]),
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


def test_every_target_is_missed_alone() -> None:
    """A plan misses what it exceeds, and only that; the first token is a prefill's."""
    targets = Targets(max_step_s=0.02, max_ttft_s=0.5, min_tokens_per_s=1000.0, max_chips=16)
    assert targets.words == ("--max-step-ms 20", "--max-ttft-ms 500", "--min-tokens-per-s 1000", "--max-chips 16")
    assert targets.missed("decode", 0.02, 1000.0, 16) == ()
    assert targets.missed("decode", 0.6, 1000.0, 16) == ("--max-step-ms 20",)
    both = ("--max-step-ms 20", "--max-ttft-ms 500", "--min-tokens-per-s 1000")
    assert targets.missed("prefill", 0.6, 999.0, 16) == both
    assert targets.missed("decode", 0.01, 1000.0, 32) == ("--max-chips 16",)
    assert Targets().missed("decode", 1e9, 0.0, 10**6) == ()


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
