"""Choose the slices of a query: the named ones, and every legal one of some chips within a range of sizes."""

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
    """Return the named slices, then every legal slice of `chips` with a number of chips in `counts`, ends included.

    The chip of `chip_file` is known by its name, too. `constants` are those that programs reach, as in
    `planner.plan.accuracy`; `most_chips` leaves larger slices of `chips` out. Raises `InputError` where no slice is
    left, or on bad input.

    >>> [slice_.name for slice_ in chosen_slices(chips=["v5e"], counts=(4, 8))]
    ['v5e:2x2', 'v5e:2x4']
    """
    if counts is not None and not chips:
        raise InputError(f"chip_counts {range_text(counts)}: of which chip? Name one, too, such as v5e", "chip_counts")
    slices = [named_slice(name, chip_file) for name in names]
    for chip in dict.fromkeys(chips):
        slices += _slices_of_chip(chip, counts, chip_file, most_chips)
    if not slices and chips:
        limits = f" and {range_text(counts)} chips contradict each other" if counts else ""
        raise InputError(
            f"max_chips {most_chips}{limits}: no slice of {', '.join(chips)} is within {'both' if limits else 'that'}; "
            f"expected more chips at most{', or a range of fewer' if limits else ''}",
            "max_chips",
        )
    if not slices:
        raise InputError("no slice given; expected at least one, such as v5e:4x4, or a chip, such as v5e")
    return tuple(slice_at(slice_, constants) for slice_ in dict.fromkeys(slices))


def range_text(counts: tuple[int, int | None]) -> str:
    """Return the range as text: one number, or the ends with dots between.

    >>> range_text((4, 256)), range_text((16, 16)), range_text((64, None))
    ('4..256', '16', '64..')
    """
    smallest, greatest = counts
    return str(smallest) if smallest == greatest else f"{smallest}..{'' if greatest is None else greatest}"


def named_slice(slice_: Slice | str, chip_file: str | Path | None = None) -> Slice:
    """Return the slice of that name: of the chip in the file if it has the name, else of a built-in chip.

    Raises `InputError` on an unknown chip.
    """
    if not isinstance(slice_, str):
        return slice_
    name = slice_.partition(":")[0].strip().lower()
    if chip_file is None:
        if name in CALIBRATED_CHIPS:
            raise InputError(f"slice {slice_!r}: a chip that `meshwright calibrate` makes; name its chip file, too")
        return parse_slice(slice_)
    file_chip = read_chip(Path(chip_file))
    if name == file_chip.name.lower():
        return parse_slice(slice_, file_chip)
    if name not in chip_names():
        raise InputError(
            f"slice {slice_!r}: neither the chip of '{chip_file}', which is {file_chip.name!r}, nor a built-in one"
        )
    return parse_slice(slice_)


def _slices_of_chip(
    name: str, counts: tuple[int, int | None] | None, chip_file: str | Path | None, most_chips: int | None
) -> list[Slice]:
    """Return the legal slices of a chip within the range of sizes."""
    file_chip = None if chip_file is None else read_chip(Path(chip_file))
    if file_chip is not None and file_chip.name.lower() == name.strip().lower():
        chip = file_chip
    elif name.strip().lower() in chip_names():
        chip = load_chip(name.strip().lower())
    else:
        raise InputError(f"chips {name!r}: no such chip; closest: {closest(name, chip_names())}", "chips")
    smallest, greatest = counts or (1, None)
    legal = slices_of(chip)
    slices = [s for s in legal if smallest <= s.chips and (greatest is None or s.chips <= greatest)]
    if not slices:
        sizes = ", ".join(map(str, sorted({s.chips for s in legal})))
        raise InputError(
            f"chip_counts {range_text((smallest, greatest))}: {chip.name} has no slice of so many; it has {sizes}",
            "chip_counts",
        )
    return [s for s in slices if most_chips is None or s.chips <= most_chips]


def in_order(slices: Iterable[Slice]) -> tuple[Slice, ...]:
    """Return the slices by number of chips and name, independent of their order in the query."""
    return tuple(sorted(slices, key=lambda s: (s.chips, s.name)))
