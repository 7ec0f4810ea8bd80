"""Compiling for a slice that may not be there: what the compiler says of memory, the program's text, or why not.

A program that does not fit is a value, `DoesNotFit`, since a verdict is asked for on both sides of the edge.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from executor.wording import first_line, gb
from mesh.slices import Slice

if TYPE_CHECKING:
    import jax

HBM_OPTION = "xla_tpu_max_hbm_size_mib"
PRINTED_WITHIN_BYTES = 0.005 * 2**30  # the compiler prints GiB with two decimals
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_SIZE = r"([\d.]+)([KMGT]?)i?B?"
_TOO_BIG = (
    re.compile(rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm", re.IGNORECASE),
)


class CompileFailed(Exception):
    """The compiler rejected a program for another reason than its size: one line."""


@dataclass(frozen=True, slots=True)
class DoesNotFit:
    """The compiler's verdict on a program that is too big for one device's HBM, as precise as it prints it."""

    need_bytes: float
    have_bytes: float

    def told(self, planned_bytes: float) -> str:
        """Both in words, and how much less this compiler lets a program use than was planned with, if it is less.

        >>> DoesNotFit(102.811e9, 102.789e9).told(planned_bytes=102.803e9)
        '102.8110 GB needed, 102.7890 GB usable (14 MB less than planned with: the limit of the installed compiler)'
        """
        text = f"{gb(self.need_bytes)} needed, {gb(self.have_bytes)} usable"
        less = planned_bytes - self.have_bytes
        if less <= PRINTED_WITHIN_BYTES:
            return text
        return f"{text} ({less / 1e6:.0f} MB less than planned with: the limit of the installed compiler)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A compiled program: bytes per device, its HLO text, and what compiling took."""

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    code_bytes: int
    text: str
    seconds: float

    @property
    def total_bytes(self) -> int:
        """Return the bytes that are in HBM at once; outputs that reuse arguments count once."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes + self.code_bytes


def compile_on(
    slice_: Slice,
    fn: Callable[..., Any],
    args: Sequence[Any],
    donate: Sequence[int] = (),
    hbm_bytes: float | None = None,
) -> Compiled | DoesNotFit:
    """Compile `fn` for ShapeDtypeStructs whose NamedShardings lie on devices of the slice (see `devices`).

    `fn` is a plain or sharded function, or jitted already. `donate` numbers the arguments that may be overwritten.
    `hbm_bytes`: how much HBM the compiler is told that a TPU has, where it is less than the TPU's own.
    """
    import jax

    jitted = fn if hasattr(fn, "lower") else jax.jit(fn, donate_argnums=tuple(donate))
    options = compiler_options(slice_, args)
    if hbm_bytes is not None:
        options[HBM_OPTION] = str(int(hbm_bytes / 2**20))
    start = time.perf_counter()
    lowered = jitted.lower(*args)
    try:
        compiled = lowered.compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as error:
        return too_big(str(error)) or _fail(slice_, error)
    return _measured(compiled, time.perf_counter() - start)


def compiler_options(slice_: Slice, args: Sequence[Any] = ()) -> dict[str, str]:
    """Return the compiler options of a program for the slice's TPU, here and where it is served; `args` may be trees.

    The chip's file says what, and why. A program for host devices takes no options.
    """
    import jax

    on = {device.platform for leaf in jax.tree.leaves(args) for device in leaf.sharding.device_set}
    return dict(slice_.chip.compiler_options or {}) if on <= {"tpu"} else {}


def _measured(compiled: jax.stages.Compiled, seconds: float) -> Compiled:
    memory: Any = compiled.memory_analysis()
    return Compiled(
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        alias_bytes=memory.alias_size_in_bytes,
        temp_bytes=memory.temp_size_in_bytes,
        code_bytes=memory.generated_code_size_in_bytes,
        text=compiled.as_text() or "",
        seconds=seconds,
    )


def too_big(message: str) -> DoesNotFit | None:
    """Read the compiler's out-of-memory message; None where it is about something else.

    >>> too_big("the total memory required for HLO temporaries (25.00G) exceeds available HBM (15.75G).")
    DoesNotFit(need_bytes=26843545600.0, have_bytes=16911433728.0)
    """
    for pattern in _TOO_BIG:
        if match := pattern.search(message):
            need, need_unit, have, have_unit = match.groups()
            return DoesNotFit(_bytes(need, need_unit), _bytes(have, have_unit))
    return None


def _bytes(number: str, unit: str) -> float:
    return float(number) * 2.0 ** _UNITS[unit]


def _fail(slice_: Slice, error: Exception) -> Compiled:
    raise CompileFailed(f"the compiler for {slice_.name} failed: {first_line(error)}") from error
