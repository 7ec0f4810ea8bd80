"""`verify`: runs the levels on one plan and says whether it does what was promised."""

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
"""`shard_map`; `jit` with the plan's specs and constraints; `jit` with its specs alone; the first two in turn."""

HOST_DEVICES, MOST_HOST_DEVICES = 16, 64
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class LevelEntry:
    """A level that can be asked for: its function in each mode, as "module:function", for jax loads when it runs.

    A level without `automatic` runs in mode manual, whatever the mode: numbers do not depend on who asks for a
    collective. `default`: whether it runs unless levels are named.
    """

    manual: str
    automatic: str | None = None
    default: bool = True

    def modes(self, mode: str) -> tuple[str, ...]:
        """The modes in which it runs where this one is asked for."""
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
    """The function of a level in a mode."""
    entry = LEVELS[level]
    return cast(Judge, resolve_name(entry.manual if mode == "manual" else entry.automatic or entry.manual))


@dataclass(frozen=True, kw_only=True)
class Verification:
    """A question of `verify`: plan `pick` of a plan file, its levels (None: the default ones) and its mode.

    `programs`, `chip_file`: what the plan was made with. `timing_within`: the factor between measured and priced step
    up to which level `timing` passes; without, it only tells them. Raises `InputError` on nonsense.
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
        said = f"timing_within {factor:g}: "
        if "timing" not in (self.levels or ()):
            raise InputError(f"{said}it judges level timing, which runs only if asked for", "timing_within")
        if not 1 <= factor < math.inf:
            raise InputError(f"{said}expected a factor of at least 1, such as 1.5", "timing_within")

    @property
    def wanted(self) -> tuple[str, ...]:
        """The levels after level `plan`."""
        return self.levels or tuple(name for name, entry in LEVELS.items() if entry.default)


def verify(
    asked: Verification, *, together: SingleProcess | None = None, progress: Progress = lambda _: None
) -> Report:
    """Run the levels on a plan. Level `plan`, whether the file was edited, always runs first.

    `together`: one of several processes, from `executor.processes.join`. Raises `InputError` on bad input, and where a
    level asked for by name cannot run. Levels that run by default and cannot are `skipped`, which never counts as
    passed; nor does what is only told.
    """
    together = together or SingleProcess()

    def read() -> tuple[Plan, Chip | None]:
        plan = pick_plan(read_plan(asked.path), asked.path, asked.pick)
        return plan, chip_of(plan, asked.chip_file)

    plan, chip = together.same(read, lambda question: _facts(*question, asked))
    _prepare(plan, chip, asked.wanted, together.processes)
    loaded, first = _loaded(plan, asked, chip, progress)
    results = [first]
    if loaded is not None and first.status == PASSED:
        for name in asked.wanted:
            for mode in LEVELS[name].modes(asked.mode):
                options = LevelOptions(mode=mode, timing_within=asked.timing_within)
                results.append(_run(loaded, name, options, asked.levels is not None, progress, together))
    ran = [r for r in results[1:] if r.status in (PASSED, FAILED)]
    return Report(
        schema=SCHEMA,
        tool_version=VERSION,
        plan=str(asked.path),
        pick=asked.pick,
        summary=_summary(plan, together.processes),
        levels=tuple(results),
        holds=all(r.status != FAILED for r in results) and bool(ran),
    )


def _facts(plan: Plan, chip: Chip | None, asked: Verification) -> Mapping[str, str]:
    """Return the facts that must be equal in every process that verifies a plan."""
    programs = [repr(dataclasses.replace(program, source="")) for program in asked.programs]
    return {
        "meshwright": VERSION,
        "jax": importlib.metadata.version("jax"),
        "plan": _digest(msgspec.json.encode(plan)),
        "list of levels": ",".join(asked.levels or ("default",)),
        "mode": asked.mode,
        "set of programs": _digest("\n".join(programs).encode()),
        "chip file": _digest(repr(chip).encode()),
    }


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _prepare(plan: Plan, given: Chip | None, levels: tuple[str, ...], processes: int) -> None:
    """Host devices for the levels that run on them, this process's share, and for `timing` those of the plan's chip."""
    name = plan.slice.partition(":")[0]
    chip = given or (load_chip(name) if name in chip_names() else None)
    platform = chip.kind if chip and "timing" in levels else "cpu"
    devices = max(HOST_DEVICES, min(plan.devices, MOST_HOST_DEVICES) if platform == "cpu" and given else 0)
    with contextlib.suppress(RuntimeError):  # devices are in use already; a level says so where they are too few
        prepare_environment(host_devices=-(-devices // processes), platform=platform)
    if platform != "cpu":
        platform_devices(platform)  # where it is broken JAX says so once, and then does without


def _loaded(plan: Plan, asked: Verification, chip: Chip | None, progress: Progress) -> tuple[Loaded | None, Level]:
    """The plan with its layout, None where it has none, and the result of level `plan`."""
    progress("checking plan")
    started = time.perf_counter()
    loaded = None
    try:
        loaded = load(plan, asked.programs, chip)
        level = plan_file(loaded)
    except InputError as error:
        level = no_layout(error)
    return loaded, msgspec.structs.replace(level, seconds=time.perf_counter() - started)


def _run(
    loaded: Loaded, name: str, options: LevelOptions, named: bool, progress: Progress, together: SingleProcess
) -> Level:
    """A level's result; where it cannot run, `skipped`, or an `InputError` if it was asked for by name."""

    def attempt() -> Level:
        return together.level(name, lambda: judge_of(name, options.mode)(loaded, options))

    try:
        return _timed(attempt, progress, f"{name} ({options.mode})")
    except Unavailable as reason:
        if named:
            raise InputError(f"level '{name}' cannot run here: {reason}") from None
        return skipped(name, options.mode, str(reason))
    except InputError as error:
        finding = Finding(what="the plan's programs", promised=f"to run at level {name}", found=str(error))
        return verdict(name, options.mode, 1, (finding,))


def _timed(run: Callable[[], Level], progress: Progress, what: str) -> Level:
    progress(f"checking {what}")
    started = time.perf_counter()
    return msgspec.structs.replace(run(), seconds=time.perf_counter() - started)


def _summary(plan: Plan, processes: int) -> str:
    mesh = " ".join(f"{n}{s}" for n, s in zip(plan.mesh.axis_names, plan.mesh.axis_sizes, strict=True))
    work = f"{plan.phase} at batch {plan.batch}, context {plan.context}"
    by = f", in {processes} processes" if processes > 1 else ""
    of = f", one of {plan.num_slices} equal slices" if plan.num_slices > 1 else ""
    return f"{plan.model.name}, {work}, on {plan.slice}{of} as {mesh or '1'}{by}"
