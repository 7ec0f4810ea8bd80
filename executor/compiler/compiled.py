"""Compile a function for a slice that this machine need not have, and return the program's memory and HLO text.

A program that does not fit into HBM is a value, `DoesNotFit`, rather than an error, because levels judge programs that
fit as well as programs that do not.
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
    """The compiler rejected a program for another reason than its size; the message is one line."""


@dataclass(frozen=True, slots=True)
class DoesNotFit:
    """A program that is too big for one device: the bytes that it needs and the bytes that it may use.

    Both are as precise as the compiler prints them, in GiB with two decimals.
    """

    need_bytes: float
    have_bytes: float

    def describe(self, planned_bytes: float) -> str:
        """Return both numbers in words, and how many bytes fewer are usable than the plan assumed, if fewer.

        >>> DoesNotFit(102.811e9, 102.789e9).describe(planned_bytes=102.803e9)
        '102.8110 GB needed, 102.7890 GB usable (14 MB less than planned with: the limit of the installed compiler)'
        """
        text = f"{gb(self.need_bytes)} needed, {gb(self.have_bytes)} usable"
        missing_bytes = planned_bytes - self.have_bytes
        if missing_bytes <= PRINTED_WITHIN_BYTES:
            return text
        return f"{text} ({missing_bytes / 1e6:.0f} MB less than planned with: the limit of the installed compiler)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A compiled program: its bytes per device, its HLO text, and the seconds that compiling took.

    `alias_bytes`: bytes of results that reuse the memory of donated arguments, such as a KV cache updated in place.
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    code_bytes: int
    text: str
    seconds: float

    @property
    def total_bytes(self) -> int:
        """The bytes that must be in HBM at once; results that reuse arguments count once."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes + self.code_bytes


def compile_on(
    slice_: Slice,
    fn: Callable[..., Any],
    args: Sequence[Any],
    donate: Sequence[int] = (),
    hbm_bytes: float | None = None,
) -> Compiled | DoesNotFit:
    """Compile `fn` for ShapeDtypeStructs whose NamedShardings lie on devices of the slice.

    `fn`: a function, or the result of `jax.jit`. `args`: its abstract arguments; `executor.devices.tpu_devices` gives
    devices that need no TPU. `donate`: the numbers of the arguments that may be overwritten, unless `fn` is jitted
    already. `hbm_bytes`: the HBM of a TPU that the compiler is to assume, in bytes, if less than the chip has.

    Returns `DoesNotFit` if the program is too big. Raises `CompileFailed` if the compiler rejects it for any other
    reason.
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
    return _to_compiled(compiled, time.perf_counter() - start)


def compiler_options(slice_: Slice, args: Sequence[Any] = ()) -> dict[str, str]:
    """Return the compiler options of the slice's chip, for `compile(compiler_options=...)`; `args` may be trees.

    They come from the chip's file, which also gives the reason for each; a server must compile with the same options.
    Arguments on host devices give no options.
    """
    import jax

    platforms = {device.platform for leaf in jax.tree.leaves(args) for device in leaf.sharding.device_set}
    return dict(slice_.chip.compiler_options or {}) if platforms <= {"tpu"} else {}


def _to_compiled(compiled: jax.stages.Compiled, seconds: float) -> Compiled:
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
    """Read the compiler's out-of-memory message; return None if the message is about something else.

    >>> too_big("the total memory required for HLO temporaries (25.00G) exceeds available HBM (15.75G).")
    DoesNotFit(need_bytes=26843545600.0, have_bytes=16911433728.0)
    """
    for pattern in _TOO_BIG:
        if match := pattern.search(message):
            need, need_unit, have, have_unit = match.groups()
            return DoesNotFit(_bytes(need, need_unit), _bytes(have, have_unit))
    return None


def _bytes(number: str, unit: str) -> float:
    """Return the bytes of a printed size such as 15.75 and G; the units are binary."""
    return float(number) * 2.0 ** _UNITS[unit]


def _fail(slice_: Slice, error: Exception) -> Compiled:
    """Raise `CompileFailed` with the first line of the compiler's error."""
    raise CompileFailed(f"the compiler for {slice_.name} failed: {first_line(error)}") from error
