"""The level `tpu-compiler`: the whole step at full size through the real TPU compiler, for a slice that is not there.

It asks whether the plan fits, whether the compiled program's memory is what the plan says, whether the cache is
written in place, and whether the collectives are those that were priced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from executor.compiler.compiled import Compiled, CompileFailed, DoesNotFit, compile_on
from executor.compiler.expected import ExpectedCollective, promises, widths
from executor.compiler.hlo import Array, big_arrays, big_copies, collectives
from executor.compiler.rewrites import CollectiveDiff, Difference, Rewrite, compare_collectives
from executor.devices import build_mesh, tpu_devices
from executor.levels.level import MANUAL, LevelOptions
from executor.loaded import Loaded
from executor.verdict import Finding, Level, verdict
from executor.wording import gb
from planner.plan.plan import Plan
from strategies.models.workload import dtype_bytes
from strategies.readers.specs import TensorSpec

LEVEL = "tpu-compiler"
ARGUMENTS_WITHIN, TOTAL_WITHIN = 0.005, 0.05
EDGE_WITHIN = 0.01  # beyond usable HBM a plan may say that it does not fit, and be wrong by so little
FULL = 0.95  # of usable HBM: from here on the compiler finds ways to need less
CAPACITY_FACTOR = 1.0  # slots per expert that the plan prices: the mean
NAMED = 5  # of the largest temporaries


@dataclass(frozen=True)
class Facts:
    """The compiled step of a plan, and the mesh that it was compiled for.

    `packed`: the same for a device with only the HBM that was promised, asked where `made` takes more.
    """

    loaded: Loaded
    made: Compiled | DoesNotFit
    axes: Mapping[str, int]
    packed: Compiled | DoesNotFit | None = None

    @property
    def plan(self) -> Plan:
        """The plan that promised it."""
        return self.loaded.plan

    @property
    def stored_bytes(self) -> float:
        """Return the bytes of a step's arguments by the plan: weights and, in decode, the cache."""
        memory = self.plan.memory
        return memory.weights_bytes + (memory.kv_bytes if self.plan.phase == "decode" else 0.0)

    @property
    def promised(self) -> list[ExpectedCollective]:
        """The priced collectives."""
        return promises(self.plan.cost.steps, self.axes, widths(self.plan), as_run=True)

    def comparison(self, made: Compiled) -> CollectiveDiff:
        """The compiled collectives against the priced ones; the TPU's compiler widens nothing by itself."""
        return compare_collectives(self.promised, collectives(made.text), self.axes, widens=False)


def tpu_compiler(loaded: Loaded, options: LevelOptions = MANUAL) -> Level:
    """Compile the plan's step and hold it against the plan; raises `Unavailable` where the compiler is not there."""
    try:
        return judge(packed(compile_plan(loaded)), options.mode)
    except CompileFailed as error:
        return verdict(LEVEL, options.mode, 1, (Finding(what="compiling", promised="a program", found=str(error)),))


def packed(facts: Facts) -> Facts:
    """Compile a step that takes more than the plan says once more, for devices with exactly so much HBM.

    With HBM to spare the compiler leaves gaps between buffers, up to half of all temporaries, and packs them where it
    must; what a plan promises is that its step runs in so many bytes. A compiler that cannot be told how much HBM there
    is leaves it at that.
    """
    promised = facts.plan.memory.total_bytes
    if isinstance(facts.made, DoesNotFit) or facts.made.total_bytes <= promised * (1 + TOTAL_WITHIN):
        return facts
    try:
        return replace(facts, packed=compile_plan(facts.loaded, hbm_bytes=promised).made)
    except CompileFailed:
        return facts


def compile_plan(loaded: Loaded, hbm_bytes: float | None = None) -> Facts:
    """Compile the step of a plan at full size; nothing is allocated. Raises `Unavailable`, `CompileFailed`.

    `hbm_bytes`: of each device, where it is less than the slice's own.
    """
    slice_ = loaded.slice_
    mesh = build_mesh(loaded.plan.mesh, slice_, tpu_devices(slice_))
    step, arguments = _step(loaded, mesh)
    return Facts(loaded, compile_on(slice_, step, arguments, hbm_bytes=hbm_bytes), dict(mesh.shape))


def _step(loaded: Loaded, mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    from executor.run.engine import engine_of
    from executor.run.runnable import RunOptions

    engine = engine_of(loaded, mesh, RunOptions(capacity_factor=CAPACITY_FACTOR))
    step = engine.decode_step() if loaded.plan.phase == "decode" else engine.prefill_step()
    return step, engine.abstract_arguments()


def judge(facts: Facts, mode: str) -> Level:
    """The verdict on what was compiled."""
    if isinstance(facts.made, DoesNotFit):
        return _over_full(facts.plan, facts.made, mode)
    checks = [_fits(facts), *_memory(facts, facts.made), *_copies(facts, facts.made)]
    comparison = facts.comparison(facts.made)
    findings = (*filter(None, checks), *map(_difference, comparison.differences))
    notes = (*_memory_notes(facts, facts.made), *map(_rewrite, comparison.rewrites))
    return verdict(LEVEL, mode, len(checks) + len(facts.promised), findings, notes)


def _over_full(plan: Plan, made: DoesNotFit, mode: str) -> Level:
    """A plan that says itself that it does not fit is right."""
    memory, message = plan.memory, made.told(plan.memory.usable_bytes)
    if memory.total_bytes > memory.usable_bytes:
        return verdict(LEVEL, mode, 1, (), (f"does not fit, as the plan says: {message}",))
    promised = f"fits: {gb(memory.total_bytes)} of {gb(memory.usable_bytes)}"
    return verdict(LEVEL, mode, 1, (Finding(what="memory", promised=promised, found=message),))


def _fits(facts: Facts) -> Finding | None:
    memory = facts.plan.memory
    if memory.total_bytes <= memory.usable_bytes * (1 + EDGE_WITHIN):
        return None
    promised = f"does not fit: {gb(memory.total_bytes)} of {gb(memory.usable_bytes)}"
    return Finding(what="memory", promised=promised, found="the compiler fits it")


def _memory(facts: Facts, made: Compiled) -> list[Finding | None]:
    total, given = facts.plan.memory.total_bytes, _given_bytes(facts.plan)
    return [
        _close("bytes of the arguments", facts.stored_bytes, made.argument_bytes, ARGUMENTS_WITHIN),
        _close("bytes of the results", given, made.output_bytes, ARGUMENTS_WITHIN) if given else None,
        None
        if _saved(facts, made) or isinstance(facts.packed, Compiled)
        else _close("bytes in all", total, made.total_bytes, TOTAL_WITHIN, "; ".join(_temporaries(facts, made))),
    ]


def _given_bytes(plan: Plan) -> float | None:
    """The caches that a step gives, beside a few tokens; unknown where a prompt's entries leave a window."""
    windows = [g.attention.window for g in plan.model.groups if g.attention.window]
    return None if plan.phase == "prefill" and windows else plan.memory.kv_bytes or None


def _saved(facts: Facts, made: Compiled) -> bool:
    """Return whether temporaries take less than was promised, of nearly all of HBM: there the compiler reuses more."""
    memory = facts.plan.memory
    return made.total_bytes < memory.total_bytes and memory.total_bytes > FULL * memory.usable_bytes


def _close(what: str, promised: float, compiled: float, within: float, why: str = "") -> Finding | None:
    if abs(compiled - promised) <= within * promised:
        return None
    off = f"{gb(compiled)} ({compiled / promised - 1:+.1%})" + (f": {why}" if why else "")
    return Finding(what=what, promised=f"{gb(promised)} within {within:.1%}", found=off)


def _temporaries(facts: Facts, made: Compiled) -> list[str]:
    """The largest arrays that the program makes beside the cache, from 1% of the plan's bytes on."""
    least = 0.01 * facts.plan.memory.total_bytes
    arrays = (a for a in big_arrays(made.text, least) if a.opcode not in ("dynamic-update-slice", "tuple"))
    lines = (f"{gb(a.shape.nbytes)} {_shape(a)} by {_where(a.op_name) or a.opcode}" for a in arrays)
    return list(dict.fromkeys(lines))[:NAMED]


def _copies(facts: Facts, made: Compiled) -> Iterator[Finding | None]:
    """The first copy from the smallest cache tensor's size on; in prefill the cache is made, so it may be moved."""
    size = _cache_tensor_bytes(facts.plan)
    if facts.plan.phase != "decode" or not size:
        return
    yield next(map(_copy, big_copies(made.text, size)), None)
    yield _in_place(facts.plan.memory.kv_bytes, made.alias_bytes)


def _in_place(promised: float, compiled: float) -> Finding | None:
    if compiled >= promised * (1 - ARGUMENTS_WITHIN):
        return None
    return Finding(what="cache", promised=f"{gb(promised)} updated in place", found=gb(compiled))


def _copy(a: Array) -> Finding:
    return Finding(
        what=f"cache, in {_where(a.op_name) or a.name}", promised="updated in place", found=f"{a.opcode} of {_shape(a)}"
    )


def _cache_tensor_bytes(plan: Plan) -> float:
    """Bytes of the smallest cache tensor on one device, all its layers."""
    sizes = dict(zip(plan.mesh.axis_names, plan.mesh.axis_sizes, strict=True))
    byte_sizes = []
    for layout in plan.layouts:
        if layout.cache_order:
            byte_sizes += [layout.layers * _local_bytes(s, sizes) for s in plan.caches(layout.component).values()]
    return min(byte_sizes, default=0.0)


def _local_bytes(spec: TensorSpec, sizes: Mapping[str, int]) -> float:
    ways = prod(sizes[axis] for axes in spec.axes for axis in axes)
    return prod(spec.shape) / ways * dtype_bytes(spec.dtype)


def _memory_notes(facts: Facts, made: Compiled) -> Iterator[str]:
    yield (
        f"memory: arguments {gb(made.argument_bytes)} (promised {gb(facts.stored_bytes)}), in all "
        f"{gb(made.total_bytes)} (promised {gb(facts.plan.memory.total_bytes)}), temporaries {gb(made.temp_bytes)}, "
        f"code {gb(made.code_bytes)}; compiled in {made.seconds:.1f} s"
    )
    if isinstance(facts.packed, Compiled):
        yield (
            f"memory: where a device has no more HBM than promised, the compiler packs the step into "
            f"{gb(facts.packed.total_bytes)}"
        )
    for line in _temporaries(facts, made):
        yield f"temporary: {line}"


def _rewrite(r: Rewrite) -> str:
    did = ", ".join(dict.fromkeys(f"{c.kind} ({c.emitter or 'no emitter'})" for c in r.found))
    what = "; ".join(dict.fromkeys(p.text for p in r.promised))
    return f"{r.kind}: {what} runs as {did}, {r.extra_bytes / 1e6:+.3g} MB per device and step"


def _difference(d: Difference) -> Finding:
    return Finding(
        what=f"{d.kind} collective",
        promised="; ".join(f"{p.kind} over {''.join(p.axes)} of {p.elements:.0f}, {p.text}" for p in d.promised)
        or "none",
        found="; ".join(f"{c.kind} of {c.elements} x {c.runs} in {_where(c.op_name) or c.name}" for c in d.found)
        or "none",
    )


def _where(op_name: str) -> str:
    """The step that an operation belongs to, `program.number.op`."""
    words = [word for word in re.split("[/;]", op_name) if word.count(".") == 2]
    return words[-1] if words else op_name.rpartition("/")[2]


def _shape(a: Array) -> str:
    return f"{a.shape.dtype}[{','.join(map(str, a.shape.dims))}]"
