"""Chips: what one accelerator can do, as cited facts read from data/chips/*.toml."""

import difflib
import functools
import math
import re
import tomllib
from pathlib import Path
from typing import Literal

import msgspec

from mesh.errors import InputError

CHIPS = Path(__file__).parent / "data" / "chips"
UNCITED = {"name", "kind", "sources", "machines"}  # machines cite for themselves

Wrap = Literal["size-16", "size-32", "multiple-of-4", "switch"]
Reduced = Literal["all", "squares", "three-axes"]


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The slices that one machine type is built into, and Kubernetes' names for it."""

    chips_per_host: int
    machine_type: str
    accelerator_label: str
    dims: tuple[str, ...]
    source: str


class Reached(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shares of the data sheet's HBM bytes/s, FLOP/s, link bytes/s and hop latency that programs reach.

    A collective takes its hops and `launch_s` per phase, one torus axis after the other.
    """

    hbm: float
    matmul: float
    link: float
    hop: float
    launch_s: float

    def __post_init__(self) -> None:
        for name in ("hbm", "matmul", "link"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError(f"reached.{name} = {getattr(self, name)}: expected a share above 0 and at most 1")
        if not 0 <= self.hop <= 1000:
            raise InputError(f"reached.hop = {self.hop}: expected a multiple of the hop latency, from 0 to 1000")
        if not 0 <= self.launch_s < 1:
            raise InputError(f"reached.launch_s = {self.launch_s}: expected seconds, from 0 to below 1")


class Chip(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One chip; rates are per chip unless the name says device, links are one way.

    `reached`: what estimates are made of; without it they take the data sheet at its word.
    `whole_slice_reduced`: slices on which the compiler does a ReduceScatter over all devices as an AllReduce.
    `topology_options` describe a slice to the TPU compiler beside its name, `compiler_options` go with every program.
    """

    name: str
    kind: Literal["tpu", "gpu", "cpu"]
    flops_per_s: dict[str, float]
    hbm_bytes: float
    hbm_bytes_per_s: float
    usable_hbm_bytes_per_device: float
    devices_per_chip: Literal[1, 2]
    link_bytes_per_s: float
    core_link_bytes_per_s: float | None = None
    hop_latency_s: float
    torus_dims: Literal[1, 2, 3]
    wrap: Wrap
    whole_slice_reduced: Reduced | None = None
    topology_options: dict[str, str] | None = None
    compiler_options: dict[str, str] | None = None
    reached: Reached | None = None
    pcie_bytes_per_s: float | None = None
    dcn_bytes_per_s: float | None = None
    vmem_bytes: int | None = None
    vmem_bandwidth_per_hbm_bandwidth: float | None = None
    sources: dict[str, str]
    machines: tuple[Machine, ...]

    def __post_init__(self) -> None:
        uncited = [field for field in _cited_fields(self) if field not in self.sources]
        if uncited:
            raise InputError(f"chip {self.name}: no source for {', '.join(uncited)}; add it under [sources]")
        if not any(machine.dims for machine in self.machines):
            raise InputError(f"chip {self.name}: no slice; add dims under [[machines]]")
        for field, value in _numbers(self).items():
            if not 0 < value < math.inf:
                raise InputError(f"chip {self.name}: {field} = {value} must be above 0 and finite")
        if (self.devices_per_chip == 2) != (self.core_link_bytes_per_s is not None):
            raise InputError(
                f"chip {self.name}: core_link_bytes_per_s is needed with devices_per_chip = 2, and only then"
            )

    def __hash__(self) -> int:
        return hash(self.name)

    def device_flops_per_s(self, dtype: str) -> float:
        """FLOP/s of one JAX device in a compute dtype.

        >>> load_chip("tpu7x").device_flops_per_s("bf16")  # half of the chip's 2.3e15
        1150000000000000.0
        """
        if dtype not in self.flops_per_s:
            known = ", ".join(sorted(self.flops_per_s))
            raise InputError(f"{self.name} has no FLOP/s for dtype {dtype!r}; it has {known}")
        return self.flops_per_s[dtype] / self.devices_per_chip

    @property
    def device_hbm_bytes_per_s(self) -> float:
        """HBM bytes/s that one JAX device can use.

        >>> load_chip("v5e").device_hbm_bytes_per_s
        820000000000.0
        """
        return self.hbm_bytes_per_s / self.devices_per_chip


def chip_names() -> tuple[str, ...]:
    """Names of the built-in chips, in natural order.

    >>> [name for name in chip_names() if name.startswith("v5")]
    ['v5e', 'v5p']
    """
    return tuple(sorted((file.stem for file in CHIPS.glob("*.toml")), key=_natural))


def load_chip(name: str, path: Path | str | None = None) -> Chip:
    """The built-in chip of that name, or the chip of that name in a file of your own."""
    if path is None:
        return _built_in(name.strip().lower())
    chip = read_chip(Path(path))
    if chip.name != name:
        raise InputError(f"{path}: expected a chip named {name!r}, got {chip.name!r}")
    return chip


def closest(word: str, known: tuple[str, ...]) -> str:
    """Return the known words that are closest to one that is not known: a few, or all.

    >>> closest("v5", ("v4", "v5e", "v5p", "h100"))
    'v5p, v5e, v4'
    """
    return ", ".join(difflib.get_close_matches(word, known, n=3, cutoff=0.5) or known)


@functools.cache
def _built_in(name: str) -> Chip:
    if name not in chip_names():
        raise InputError(f"no chip named {name!r}; closest: {closest(name, chip_names())}")
    return read_chip(CHIPS / f"{name}.toml")


def read_chip(path: Path) -> Chip:
    """The chip of a chip file, such as `meshwright calibrate` writes; raises `InputError` where it is none."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text("utf-8")), Chip)
    except OSError as error:
        raise InputError(f"{path}: cannot read the chip file: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{path}: not a chip file: {error}") from error


def _cited_fields(chip: Chip) -> list[str]:
    fields = [field for field in chip.__struct_fields__ if field not in UNCITED]
    return [field for field in fields if getattr(chip, field) is not None]


def _numbers(chip: Chip) -> dict[str, float]:
    values = {field: getattr(chip, field) for field in _cited_fields(chip)}
    numbers = {field: value for field, value in values.items() if isinstance(value, int | float)}
    return numbers | {f"flops_per_s.{dtype}": value for dtype, value in chip.flops_per_s.items()}


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]
