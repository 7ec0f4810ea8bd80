"""Level `tpu-compiler` compiles the whole step at full size with the real TPU compiler; no TPU is needed.

It checks four claims of the plan against the compiled program: that the program fits into HBM, that it uses the bytes
that the plan states, that the KV cache is updated in place, and that its collectives are the priced ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from executor.compiler.compiled import Compiled, CompileFailed, DoesNotFit, compile_on
from executor.compiler.expected import ExpectedCollective, expected_collectives, widths
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
EDGE_WITHIN = 0.01  # a plan up to 1% over usable HBM may say that it does not fit although the compiler fits it
FULL = 0.95  # of usable HBM: a program that is fuller makes the compiler save memory
CAPACITY_FACTOR = 1.0  # the plan prices the mean number of slots per expert
NAMED = 5  # how many of the largest temporaries are named


@dataclass(frozen=True)
class Facts:
    """A plan, its step as the TPU compiler compiled it, and the mesh (`axes`: axis name -> size).

    `packed`: the result of a second compilation for devices with only as much HBM as the plan states; see `packed`.
    None if there was no second compilation.
    """

    loaded: Loaded
    compiled: Compiled | DoesNotFit
    axes: Mapping[str, int]
    packed: Compiled | DoesNotFit | None = None

    @property
    def plan(self) -> Plan:
        """The plan that is checked."""
        return self.loaded.plan

    @property
    def stored_bytes(self) -> float:
        """Bytes per device of the step's arguments as the plan states them.

        These are the weights, and in decode the KV cache too; in prefill the cache is a result, not an argument.
        """
        memory = self.plan.memory
        return memory.weights_bytes + (memory.kv_bytes if self.plan.phase == "decode" else 0.0)

    @property
    def expected(self) -> list[ExpectedCollective]:
        """The priced collectives, of the kinds that this chip's compiler turns them into (`CommPlan.runs_as`)."""
        return expected_collectives(self.plan.cost.steps, self.axes, widths(self.plan), as_run=True)

    def comparison(self, compiled: Compiled) -> CollectiveDiff:
        """Compare the compiled collectives with the priced ones; the TPU compiler never widens elements by itself."""
        return compare_collectives(self.expected, collectives(compiled.text), self.axes, widens=False)


def tpu_compiler(loaded: Loaded, options: LevelOptions = MANUAL) -> Level:
    """Compile the plan's step, compare the result with the plan, and return the level `tpu-compiler`.

    A program that the compiler rejects fails the level. Raises `Unavailable` if the slice is no TPU slice, or if
    libtpu, the TPU compiler, is not installed or does not know the slice.
    """
    try:
        return judge(packed(compile_plan(loaded)), options.mode)
    except CompileFailed as error:
        return verdict(LEVEL, options.mode, 1, (Finding(what="compiling", promised="a program", found=str(error)),))


def packed(facts: Facts) -> Facts:
    """Compile a step that takes more bytes than the plan states again, for devices with only that much HBM.

    With HBM to spare the compiler leaves gaps between buffers, up to half of all temporaries, and packs them only if
    it must. A plan claims that its step runs in a number of bytes, and the second compilation tests this claim. The
    facts come back unchanged if the step is small enough, or if the compiler does not accept a limit on HBM.
    """
    planned_bytes = facts.plan.memory.total_bytes
    if isinstance(facts.compiled, DoesNotFit) or facts.compiled.total_bytes <= planned_bytes * (1 + TOTAL_WITHIN):
        return facts
    try:
        return replace(facts, packed=compile_plan(facts.loaded, hbm_bytes=planned_bytes).compiled)
    except CompileFailed:
        return facts


def compile_plan(loaded: Loaded, hbm_bytes: float | None = None) -> Facts:
    """Compile the step of a plan at full size, without allocating anything.

    `hbm_bytes`: the HBM of each device, in bytes, if the compiler is to assume less than the chip has.
    Raises `Unavailable` if there is no compiler for the slice, `CompileFailed` if it rejects the program.
    """
    slice_ = loaded.slice_
    mesh = build_mesh(loaded.plan.mesh, slice_, tpu_devices(slice_))
    step, arguments = _step(loaded, mesh)
    return Facts(loaded, compile_on(slice_, step, arguments, hbm_bytes=hbm_bytes), dict(mesh.shape))


def _step(loaded: Loaded, mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the jitted step of the plan's phase and its abstract arguments."""
    from executor.run.engine import engine_of
    from executor.run.runnable import RunOptions

    engine = engine_of(loaded, mesh, RunOptions(capacity_factor=CAPACITY_FACTOR))
    step = engine.decode_step() if loaded.plan.phase == "decode" else engine.prefill_step()
    return step, engine.abstract_arguments()


def judge(facts: Facts, mode: str) -> Level:
    """Compare a compiled step with its plan and return the level; every check is a finding or nothing."""
    if isinstance(facts.compiled, DoesNotFit):
        return _judge_too_big(facts.plan, facts.compiled, mode)
    checks = [_fits(facts), *_memory(facts, facts.compiled), *_copies(facts, facts.compiled)]
    comparison = facts.comparison(facts.compiled)
    findings = (*filter(None, checks), *map(_difference_finding, comparison.differences))
    notes = (*_memory_notes(facts, facts.compiled), *map(_rewrite_note, comparison.rewrites))
    return verdict(LEVEL, mode, len(checks) + len(facts.expected), findings, notes)


def _judge_too_big(plan: Plan, does_not_fit: DoesNotFit, mode: str) -> Level:
    """Pass a plan that states itself that it does not fit; fail one that states that it fits."""
    memory, described = plan.memory, does_not_fit.describe(plan.memory.usable_bytes)
    if memory.total_bytes > memory.usable_bytes:
        return verdict(LEVEL, mode, 1, (), (f"does not fit, as the plan says: {described}",))
    planned = f"fits: {gb(memory.total_bytes)} of {gb(memory.usable_bytes)}"
    return verdict(LEVEL, mode, 1, (Finding(what="memory", promised=planned, found=described),))


def _fits(facts: Facts) -> Finding | None:
    """Return a finding if the plan states that it does not fit, by more than `EDGE_WITHIN`, and yet it compiles."""
    memory = facts.plan.memory
    if memory.total_bytes <= memory.usable_bytes * (1 + EDGE_WITHIN):
        return None
    promised = f"does not fit: {gb(memory.total_bytes)} of {gb(memory.usable_bytes)}"
    return Finding(what="memory", promised=promised, found="the compiler fits it")


def _memory(facts: Facts, compiled: Compiled) -> list[Finding | None]:
    """Check the bytes of the arguments, of the results and in all against the plan."""
    total, result_bytes = facts.plan.memory.total_bytes, _result_bytes(facts.plan)
    return [
        _check_bytes("bytes of the arguments", facts.stored_bytes, compiled.argument_bytes, ARGUMENTS_WITHIN),
        _check_bytes("bytes of the results", result_bytes, compiled.output_bytes, ARGUMENTS_WITHIN)
        if result_bytes
        else None,
        None
        if _compiler_saved_bytes(facts, compiled) or isinstance(facts.packed, Compiled)
        else _check_bytes(
            "bytes in all", total, compiled.total_bytes, TOTAL_WITHIN, "; ".join(_temporaries(facts, compiled))
        ),
    ]


def _result_bytes(plan: Plan) -> float | None:
    """Return the bytes of the caches that a step returns; None if unknown, as for a prefill with sliding windows."""
    windows = [g.attention.window for g in plan.model.groups if g.attention.window]
    return None if plan.phase == "prefill" and windows else plan.memory.kv_bytes or None


def _compiler_saved_bytes(facts: Facts, compiled: Compiled) -> bool:
    """Return whether the program needs less than the plan states and the plan nearly fills HBM.

    Close to the limit the compiler reuses more buffers, so fewer bytes than stated are no error there.
    """
    memory = facts.plan.memory
    return compiled.total_bytes < memory.total_bytes and memory.total_bytes > FULL * memory.usable_bytes


def _check_bytes(what: str, planned: float, actual: float, within: float, why: str = "") -> Finding | None:
    """Return a finding if the actual bytes deviate from the planned ones by more than the share `within`."""
    if abs(actual - planned) <= within * planned:
        return None
    deviation = f"{gb(actual)} ({actual / planned - 1:+.1%})" + (f": {why}" if why else "")
    return Finding(what=what, promised=f"{gb(planned)} within {within:.1%}", found=deviation)


def _temporaries(facts: Facts, compiled: Compiled) -> list[str]:
    """Describe the largest arrays that the program makes besides the cache, if larger than 1% of the plan's bytes."""
    minimum_bytes = 0.01 * facts.plan.memory.total_bytes
    arrays = (a for a in big_arrays(compiled.text, minimum_bytes) if a.opcode not in ("dynamic-update-slice", "tuple"))
    lines = (f"{gb(a.shape.nbytes)} {_shape(a)} by {_step_name(a.op_name) or a.opcode}" for a in arrays)
    return list(dict.fromkeys(lines))[:NAMED]


def _copies(facts: Facts, compiled: Compiled) -> Iterator[Finding | None]:
    """Check that decode updates the cache in place: no copy as large as a cache tensor, and its bytes aliased.

    In prefill the cache is a new array, so copies of it are allowed.
    """
    cache_tensor_bytes = _cache_tensor_bytes(facts.plan)
    if facts.plan.phase != "decode" or not cache_tensor_bytes:
        return
    yield next(map(_copy_finding, big_copies(compiled.text, cache_tensor_bytes)), None)
    yield _check_in_place(facts.plan.memory.kv_bytes, compiled.alias_bytes)


def _check_in_place(planned: float, actual: float) -> Finding | None:
    """Return a finding if fewer bytes alias an argument than the cache has."""
    if actual >= planned * (1 - ARGUMENTS_WITHIN):
        return None
    return Finding(what="cache", promised=f"{gb(planned)} updated in place", found=gb(actual))


def _copy_finding(a: Array) -> Finding:
    return Finding(
        what=f"cache, in {_step_name(a.op_name) or a.name}",
        promised="updated in place",
        found=f"{a.opcode} of {_shape(a)}",
    )


def _cache_tensor_bytes(plan: Plan) -> float:
    """Return the bytes on one device of the smallest cache tensor, over all its layers; 0 without a cache."""
    sizes = dict(zip(plan.mesh.axis_names, plan.mesh.axis_sizes, strict=True))
    sizes_bytes = []
    for layout in plan.layouts:
        if layout.cache_order:
            sizes_bytes += [layout.layers * _local_bytes(s, sizes) for s in plan.caches(layout.component).values()]
    return min(sizes_bytes, default=0.0)


def _local_bytes(spec: TensorSpec, sizes: Mapping[str, int]) -> float:
    """Return the bytes of one device's shard of a tensor."""
    shards = prod(sizes[axis] for axes in spec.axes for axis in axes)
    return prod(spec.shape) / shards * dtype_bytes(spec.dtype)


def _memory_notes(facts: Facts, compiled: Compiled) -> Iterator[str]:
    yield (
        f"memory: arguments {gb(compiled.argument_bytes)} (promised {gb(facts.stored_bytes)}), in all "
        f"{gb(compiled.total_bytes)} (promised {gb(facts.plan.memory.total_bytes)}), "
        f"temporaries {gb(compiled.temp_bytes)}, code {gb(compiled.code_bytes)}; compiled in {compiled.seconds:.1f} s"
    )
    if isinstance(facts.packed, Compiled):
        yield (
            f"memory: where a device has no more HBM than promised, the compiler packs the step into "
            f"{gb(facts.packed.total_bytes)}"
        )
    for line in _temporaries(facts, compiled):
        yield f"temporary: {line}"


def _rewrite_note(rewrite: Rewrite) -> str:
    compiled = ", ".join(dict.fromkeys(f"{c.kind} ({c.emitter or 'no emitter'})" for c in rewrite.compiled))
    steps = "; ".join(dict.fromkeys(p.text for p in rewrite.expected))
    return f"{rewrite.kind}: {steps} runs as {compiled}, {rewrite.extra_bytes / 1e6:+.3g} MB per device and step"


def _difference_finding(difference: Difference) -> Finding:
    return Finding(
        what=f"{difference.kind} collective",
        promised="; ".join(
            f"{p.kind} over {''.join(p.axes)} of {p.elements:.0f}, {p.text}" for p in difference.expected
        )
        or "none",
        found="; ".join(
            f"{c.kind} of {c.elements} x {c.runs} in {_step_name(c.op_name) or c.name}" for c in difference.compiled
        )
        or "none",
    )


def _step_name(op_name: str) -> str:
    """Return the step that an operation belongs to, as `program.number.op`, the scope that `interpret` gives it."""
    words = [word for word in re.split("[/;]", op_name) if word.count(".") == 2]
    return words[-1] if words else op_name.rpartition("/")[2]


def _shape(a: Array) -> str:
    return f"{a.shape.dtype}[{','.join(map(str, a.shape.dims))}]"
