"""Slices: which parts of a pod can be rented, their hosts, and where their axes close into rings."""

import functools
import math

import msgspec

from mesh.chips import Chip, Reached, closest, load_chip
from mesh.chips import chip_names as built_in_names
from mesh.errors import InputError


class TorusAxis(msgspec.Struct, frozen=True, kw_only=True):
    """One physical axis: its length, whether it is a ring, and whether it joins the cores of a chip."""

    name: str
    size: int
    ring: bool
    core: bool


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """A legal slice of a chip, such as v5e:4x4."""

    chip: Chip
    dims: tuple[int, ...]
    chips_per_host: int
    machine_type: str
    accelerator_label: str
    source: str

    @property
    def topology(self) -> str:
        """The dims as the TPU tools write them: "4x4"."""
        return "x".join(map(str, self.dims))

    @property
    def name(self) -> str:
        """The name that parse_slice reads: "v5e:4x4"."""
        return f"{self.chip.name}:{self.topology}"

    @property
    def chips(self) -> int:
        """Return the number of chips."""
        return math.prod(self.dims)

    @property
    def devices(self) -> int:
        """Return the number of JAX devices: chips, or twice as many where a chip shows two."""
        return self.chips * self.chip.devices_per_chip

    @property
    def hosts(self) -> int:
        """Return the number of hosts."""
        return math.ceil(self.chips / self.chips_per_host)

    @property
    def wraps(self) -> tuple[bool, ...]:
        """For each dim, whether wraparound links close it.

        >>> parse_slice("v5e:8x16").wraps
        (False, True)
        >>> parse_slice("v5p:4x4x8").wraps, parse_slice("v5p:2x4x4").wraps
        ((True, True, True), (False, False, False))
        """
        if self.chip.wrap == "multiple-of-4":
            return (all(dim % 4 == 0 for dim in self.dims),) * len(self.dims)
        whole = {"size-16": 16, "size-32": 32}.get(self.chip.wrap)
        return tuple(dim == whole for dim in self.dims)

    @property
    def at_data_sheet(self) -> "Slice":
        """This slice where every program reaches the data sheet and the compiler does every collective as it is.

        A hop that was found to be faster than the data sheet's stays so: it is what bounds are made of.
        """
        hop_latency_s = self.chip.hop_latency_s * (min(1.0, self.chip.reached.hop) if self.chip.reached else 1.0)
        chip = msgspec.structs.replace(
            self.chip, reached=None, whole_slice_reduced=None, hop_latency_s=hop_latency_s or 1e-15
        )
        return msgspec.structs.replace(self, chip=chip)

    def reaching(self, reached: Reached, source: str = "given") -> "Slice":
        """This slice where programs reach these shares of the data sheet; `source`: where these are from."""
        sources = self.chip.sources | {"reached": source}
        chip = msgspec.structs.replace(self.chip, reached=reached, sources=sources)
        return msgspec.structs.replace(self, chip=chip)

    @property
    def reduces_whole(self) -> bool:
        """Return whether the compiler does a ReduceScatter over all devices as an AllReduce and a slice.

        >>> [name for name in ("v5e:2x4", "v5e:4x4", "v5p:2x2x1", "v5p:2x2x2") if parse_slice(name).reduces_whole]
        ['v5e:4x4', 'v5p:2x2x2']
        """
        longer = [dim for dim in self.dims if dim > 1]
        match self.chip.whole_slice_reduced:
            case "squares":
                return len(longer) == 2 and len(set(longer)) == 1 and self.chips > 4
            case "three-axes":
                return len(longer) == 3
            case "all":
                return True
        return False

    @property
    def axes(self) -> tuple[TorusAxis, ...]:
        """The physical axes in the order of the dims, then the core axis where a chip shows two devices.

        >>> [(axis.name, axis.size, axis.ring) for axis in parse_slice("tpu7x:2x2x1").axes]
        [('X', 2, False), ('Y', 2, False), ('Z', 1, False), ('core', 2, False)]
        """
        # A ring needs three chips: two are joined by one cable whether or not the axis wraps.
        torus = [
            TorusAxis(name=name, size=size, ring=wraps and size > 2, core=False)
            for name, size, wraps in zip("XYZ", self.dims, self.wraps, strict=False)
        ]
        core = TorusAxis(name="core", size=self.chip.devices_per_chip, ring=False, core=True)
        return (*torus, core) if core.size > 1 else tuple(torus)


def parse_slice(text: str, chip: Chip | None = None) -> Slice:
    """The slice of that name; with `chip`, a slice of that chip instead of the built-in one.

    >>> parse_slice("V5E:4x4").chips
    16
    """
    name, colon, topology = text.strip().lower().partition(":")
    if not colon:
        raise InputError(f"slice {text!r}: expected chip:dims, such as v5e:4x4 or h100:8")
    if chip is None:
        if name not in built_in_names():
            raise InputError(f"slice {text!r}: no chip {name!r}; closest: {closest(name, built_in_names())}")
        chip = load_chip(name)
    if chip.name.lower() != name:
        raise InputError(f"slice {text!r}: expected a slice of the chip {chip.name!r}")
    legal = {slice_.topology: slice_ for slice_ in slices_of(chip)}
    if topology not in legal:
        raise InputError(_no_such_slice(text, topology, tuple(legal.values())))
    return legal[topology]


@functools.cache
def slices_of(chip: Chip) -> tuple[Slice, ...]:
    """Every slice of a chip, by number of chips."""
    slices = [
        Slice(
            chip=chip,
            dims=_dims(chip, text),
            chips_per_host=machine.chips_per_host,
            machine_type=machine.machine_type,
            accelerator_label=machine.accelerator_label,
            source=machine.source,
        )
        for machine in chip.machines
        for text in machine.dims
    ]
    return tuple(sorted(slices, key=lambda slice_: (slice_.chips, slice_.dims)))


def _dims(chip: Chip, text: str) -> tuple[int, ...]:
    dims = _numbers(text)
    if len(dims) != chip.torus_dims:
        raise InputError(f"chip {chip.name}: slice {text!r} does not have {chip.torus_dims} dims (4x4 has 2)")
    return dims


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split("x")
    return tuple(map(int, parts)) if all(part.isdecimal() and int(part) for part in parts) else ()


def _no_such_slice(text: str, topology: str, legal: tuple[Slice, ...]) -> str:
    chip = legal[0].chip
    dims = _numbers(topology)
    for slice_ in legal:
        if sorted(slice_.dims) == sorted(dims):
            return f"slice {text!r}: {chip.name} writes these dims in another order: {slice_.name}"
    if len(dims) != chip.torus_dims:
        return f"slice {text!r}: expected {chip.torus_dims} dims after {chip.name}:, such as {_example(legal)}"
    nearest = ", ".join(slice_.name for slice_ in _nearest(dims, legal))
    return f"slice {text!r}: {chip.name} has no slice {topology}; nearest: {nearest}"


def _example(legal: tuple[Slice, ...]) -> str:
    return legal[min(3, len(legal) - 1)].name


def _nearest(dims: tuple[int, ...], legal: tuple[Slice, ...]) -> list[Slice]:
    def distance(slice_: Slice) -> tuple[float, int]:
        pairs = zip(sorted(dims), sorted(slice_.dims), strict=True)
        return sum(abs(math.log(want / have)) for want, have in pairs), slice_.chips

    return sorted(legal, key=distance)[:3]
