"""`verify` checks one plan at several levels and reports whether the plan does what it states.

Level `plan` always runs first: it recomputes the plan from its layouts, so an edited file fails at once. The other
levels (`LEVELS`) run or compile the plan's programs; each is a function from a plan to a `Level` of the report.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import cast

import msgspec

from executor.devices import Unavailable, platform_devices, prepare_environment
from executor.levels.integrity import no_layout, plan_file
from executor.levels.level import Judge, LevelOptions
from executor.loaded import Loaded, load
from executor.processes.agreement import SingleProcess
from executor.verdict import FAILED, PASSED, SCHEMA, Finding, Level, Report, skipped, verdict
from mesh.chips import Chip, chip_names, load_chip
from mesh.errors import InputError
from mesh.version import VERSION
from planner.plan.layout_file import chip_of
from planner.plan.plan import Plan
from planner.plan.planfile import pick_plan, read_plan
from strategies.notation import Program

MODES = ("manual", "automatic", "unconstrained", "both")
"""How the step is written for JAX.

`manual`: the plan's programs under `jax.shard_map`. `automatic`: plain code under `jax.jit` with the plan's
PartitionSpecs and its constraints on activations. `unconstrained`: the same without the constraints. `both`: `manual`
and `automatic`, one after the other.
"""

HOST_DEVICES, MOST_HOST_DEVICES = 16, 64
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class LevelEntry:
    """A level that `verify` can run: its function in each mode, named as "module:function".

    Functions are named rather than imported so that jax loads only if a level runs. A level without `automatic` always
    runs in mode `manual`, because its result does not depend on the mode. `default`: the level runs if the user names
    no levels.
    """

    manual: str
    automatic: str | None = None
    default: bool = True

    def modes(self, mode: str) -> tuple[str, ...]:
        """Return the modes in which the level runs if the user asks for `mode`.

        >>> LEVELS["numerics"].modes("both"), LEVELS["timing"].modes("both")
        (('manual',), ('manual', 'automatic'))
        """
        if self.automatic is None:
            return ("manual",)
        return ("manual", "automatic") if mode == "both" else (mode,)


LEVELS: Mapping[str, LevelEntry] = {
    "numerics": LevelEntry(manual="executor.levels.numerics:numerics"),
    "collectives": LevelEntry(
        manual="executor.levels.host_collectives:host_collectives",
        automatic="executor.levels.automatic:automatic_collectives",
    ),
    "tpu-compiler": LevelEntry(
        manual="executor.levels.tpu_compiler:tpu_compiler",
        automatic="executor.levels.automatic:automatic_tpu_compiler",
    ),
    "timing": LevelEntry(
        manual="executor.levels.timing:timing", automatic="executor.levels.timing:timing", default=False
    ),
}
"""The levels that run if level `plan`, which always comes first, has passed."""


def judge_of(level: str, mode: str) -> Judge:
    """Import and return the function of a level in a mode."""
    entry = LEVELS[level]
    return cast(Judge, resolve_name(entry.manual if mode == "manual" else entry.automatic or entry.manual))


@dataclass(frozen=True, kw_only=True)
class Verification:
    """A request to verify plan number `pick` (from 1) of a plan file.

    `levels`: the levels to run after level `plan`; None: those that run by default. `mode`: one of `MODES`.
    `programs`, `chip_file`: the user's own programs and chip file, if the plan was made with some.
    `timing_within`: the factor up to which measured and priced seconds may differ; without it level `timing` reports
    the seconds and does not judge them.

    Raises `InputError` on an unknown level or mode, and on a factor below 1 or without level `timing`.
    """

    path: Path
    pick: int = 1
    levels: tuple[str, ...] | None = None
    mode: str = "manual"
    programs: tuple[Program, ...] = ()
    chip_file: Path | None = None
    timing_within: float | None = None

    def __post_init__(self) -> None:
        for level in self.levels or ():
            if level not in LEVELS:
                raise InputError(f"level '{level}' is not known; expected one of {', '.join(LEVELS)}")
        if self.mode not in MODES:
            raise InputError(f"mode '{self.mode}' is not known; expected one of {', '.join(MODES)}")
        if self.timing_within is not None:
            self._check_within(self.timing_within)

    def _check_within(self, factor: float) -> None:
        prefix = f"timing_within {factor:g}: "
        if "timing" not in (self.levels or ()):
            raise InputError(f"{prefix}it judges level timing, which runs only if asked for", "timing_within")
        if not 1 <= factor < math.inf:
            raise InputError(f"{prefix}expected a factor of at least 1, such as 1.5", "timing_within")

    @property
    def levels_after_plan(self) -> tuple[str, ...]:
        """The names of the levels that run after level `plan`."""
        return self.levels or tuple(name for name, entry in LEVELS.items() if entry.default)


def verify(
    request: Verification, *, together: SingleProcess | None = None, progress: Progress = lambda _: None
) -> Report:
    """Run the levels of a request on its plan and return the report.

    Level `plan` always runs first, and the others run only if it passes. `together`: this process as one of several,
    from `executor.processes.join.joined`. `progress` is called with a line of text before each level.

    The report's `holds` is True if no level failed and at least one level after `plan` passed. A level that runs by
    default and cannot run here is `skipped`; neither `skipped` nor `told` counts as passed. Raises `InputError` on bad
    input, and if a level that the user named cannot run here.
    """
    together = together or SingleProcess()

    def read() -> tuple[Plan, Chip | None]:
        plan = pick_plan(read_plan(request.path), request.path, request.pick)
        return plan, chip_of(plan, request.chip_file)

    plan, chip = together.same(read, lambda plan_and_chip: _facts(*plan_and_chip, request))
    _prepare(plan, chip, request.levels_after_plan, together.processes)
    loaded, plan_level = _load(plan, request, chip, progress)
    results = [plan_level]
    if loaded is not None and plan_level.status == PASSED:
        for name in request.levels_after_plan:
            for mode in LEVELS[name].modes(request.mode):
                options = LevelOptions(mode=mode, timing_within=request.timing_within)
                results.append(_run(loaded, name, options, request.levels is not None, progress, together))
    ran = [r for r in results[1:] if r.status in (PASSED, FAILED)]
    return Report(
        schema=SCHEMA,
        tool_version=VERSION,
        plan=str(request.path),
        pick=request.pick,
        summary=_summary(plan, together.processes),
        levels=tuple(results),
        holds=all(r.status != FAILED for r in results) and bool(ran),
    )


def _facts(plan: Plan, chip: Chip | None, request: Verification) -> Mapping[str, str]:
    """Return the facts that must be equal in every process that verifies a plan, by name."""
    programs = [repr(dataclasses.replace(program, source="")) for program in request.programs]
    return {
        "meshwright": VERSION,
        "jax": importlib.metadata.version("jax"),
        "plan": _digest(msgspec.json.encode(plan)),
        "list of levels": ",".join(request.levels or ("default",)),
        "mode": request.mode,
        "set of programs": _digest("\n".join(programs).encode()),
        "chip file": _digest(repr(chip).encode()),
    }


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _prepare(plan: Plan, custom_chip: Chip | None, levels: tuple[str, ...], processes: int) -> None:
    """Make JAX provide this process's share of the host devices and, for level `timing`, the plan's platform."""
    name = plan.slice.partition(":")[0]
    chip = custom_chip or (load_chip(name) if name in chip_names() else None)
    platform = chip.kind if chip and "timing" in levels else "cpu"
    devices = max(HOST_DEVICES, min(plan.devices, MOST_HOST_DEVICES) if platform == "cpu" and custom_chip else 0)
    with contextlib.suppress(RuntimeError):  # devices are in use already; a level reports if they are too few
        prepare_environment(host_devices=-(-devices // processes), platform=platform)
    if platform != "cpu":
        platform_devices(platform)  # JAX warns once about a broken platform, and then works without it


def _load(plan: Plan, request: Verification, chip: Chip | None, progress: Progress) -> tuple[Loaded | None, Level]:
    """Return the loaded plan (None if its layouts are invalid) and the result of level `plan`."""
    progress("checking plan")
    started = time.perf_counter()
    loaded = None
    try:
        loaded = load(plan, request.programs, chip)
        level = plan_file(loaded)
    except InputError as error:
        level = no_layout(error)
    return loaded, msgspec.structs.replace(level, seconds=time.perf_counter() - started)


def _run(
    loaded: Loaded, name: str, options: LevelOptions, asked_by_name: bool, progress: Progress, processes: SingleProcess
) -> Level:
    """Return a level's result; a level that cannot run is `skipped`, or raises `InputError` if the user named it."""

    def attempt() -> Level:
        return processes.level(name, lambda: judge_of(name, options.mode)(loaded, options))

    try:
        return _timed_level(attempt, progress, f"{name} ({options.mode})")
    except Unavailable as reason:
        if asked_by_name:
            raise InputError(f"level '{name}' cannot run here: {reason}") from None
        return skipped(name, options.mode, str(reason))
    except InputError as error:
        finding = Finding(what="the plan's programs", promised=f"to run at level {name}", found=str(error))
        return verdict(name, options.mode, 1, (finding,))


def _timed_level(run: Callable[[], Level], progress: Progress, what: str) -> Level:
    progress(f"checking {what}")
    started = time.perf_counter()
    return msgspec.structs.replace(run(), seconds=time.perf_counter() - started)


def _summary(plan: Plan, processes: int) -> str:
    mesh = " ".join(f"{n}{s}" for n, s in zip(plan.mesh.axis_names, plan.mesh.axis_sizes, strict=True))
    work = f"{plan.phase} at batch {plan.batch}, context {plan.context}"
    in_processes = f", in {processes} processes" if processes > 1 else ""
    of_slices = f", one of {plan.num_slices} equal slices" if plan.num_slices > 1 else ""
    return f"{plan.model.name}, {work}, on {plan.slice}{of_slices} as {mesh or '1'}{in_processes}"
