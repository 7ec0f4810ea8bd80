"""The slices of a question: those named, and every legal one of some chips within a range of sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from mesh.chips import chip_names, closest, load_chip, read_chip
from mesh.errors import InputError
from mesh.slices import Slice, parse_slice, slices_of
from planner.plan.accuracy import slice_at

CALIBRATED_CHIPS = ("cpu", "gpu", "tpu")


def chosen_slices(
    names: Sequence[Slice | str] = (),
    chips: Sequence[str] = (),
    counts: tuple[int, int | None] | None = None,
    *,
    chip_file: str | Path | None = None,
    constants: str = "chip",
    most_chips: int | None = None,
) -> tuple[Slice, ...]:
    """The named slices, then every legal slice of `chips` with a number of chips in `counts`, ends included.

    A chip in `chip_file` is known by its name, too. `constants`: what programs reach, as in `planner.plan.accuracy`;
    `most_chips` leaves larger slices of `chips` out. Raises `InputError` where nothing is left, or on bad input.
    """
    if counts is not None and not chips:
        raise InputError(f"chip_counts {range_text(counts)}: of which chip? Name one, too, such as v5e", "chip_counts")
    slices = [named_slice(name, chip_file) for name in names]
    for chip in dict.fromkeys(chips):
        slices += _of_chip(chip, counts, chip_file, most_chips)
    if not slices and chips:
        both = f" and {range_text(counts)} chips contradict each other" if counts else ""
        raise InputError(
            f"max_chips {most_chips}{both}: no slice of {', '.join(chips)} is within {'both' if both else 'that'}; "
            f"expected more chips at most{', or a range of fewer' if both else ''}",
            "max_chips",
        )
    if not slices:
        raise InputError("no slice given; expected at least one, such as v5e:4x4, or a chip, such as v5e")
    return tuple(slice_at(one, constants) for one in dict.fromkeys(slices))


def range_text(counts: tuple[int, int | None]) -> str:
    """The range as text: one number, or the ends with dots between.

    >>> range_text((4, 256)), range_text((16, 16)), range_text((64, None))
    ('4..256', '16', '64..')
    """
    least, most = counts
    return str(least) if least == most else f"{least}..{'' if most is None else most}"


def named_slice(one: Slice | str, chip_file: str | Path | None = None) -> Slice:
    """The slice of that name: of the chip in the file where it has the name, else of a built-in chip."""
    if not isinstance(one, str):
        return one
    name = one.partition(":")[0].strip().lower()
    if chip_file is None:
        if name in CALIBRATED_CHIPS:
            raise InputError(f"slice {one!r}: a chip that `meshwright calibrate` makes; name its chip file, too")
        return parse_slice(one)
    own = read_chip(Path(chip_file))
    if name == own.name.lower():
        return parse_slice(one, own)
    if name not in chip_names():
        raise InputError(f"slice {one!r}: neither the chip of '{chip_file}', which is {own.name!r}, nor a built-in one")
    return parse_slice(one)


def _of_chip(
    name: str, counts: tuple[int, int | None] | None, chip_file: str | Path | None, most_chips: int | None
) -> list[Slice]:
    own = None if chip_file is None else read_chip(Path(chip_file))
    if own is not None and own.name.lower() == name.strip().lower():
        chip = own
    elif name.strip().lower() in chip_names():
        chip = load_chip(name.strip().lower())
    else:
        raise InputError(f"chips {name!r}: no such chip; closest: {closest(name, chip_names())}", "chips")
    least, most = counts or (1, None)
    legal = slices_of(chip)
    chosen = [s for s in legal if least <= s.chips and (most is None or s.chips <= most)]
    if not chosen:
        sizes = ", ".join(map(str, sorted({s.chips for s in legal})))
        raise InputError(
            f"chip_counts {range_text((least, most))}: {chip.name} has no slice of so many; it has {sizes}",
            "chip_counts",
        )
    return [s for s in chosen if most_chips is None or s.chips <= most_chips]


def in_order(slices: Iterable[Slice]) -> tuple[Slice, ...]:
    """Slices by chips and name: an order that does not depend on how they were asked for."""
    return tuple(sorted(slices, key=lambda s: (s.chips, s.name)))
