"""`verify`: runs the levels on one plan and says whether it does what was promised."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from executor.devices import Unavailable, platform_devices, prepare_environment
from executor.levels.integrity import check_plan_file
from executor.levels.verdict import FAILED, LEVELS, PASSED, SCHEMA, Finding, Level, Report, skipped, verdict
from executor.processes.agreement import Alone
from mesh.chips import Chip, chip_names, load_chip, read_chip
from mesh.errors import InputError
from mesh.version import VERSION
from planner.plan.plan import Plan
from planner.plan.planfile import pick_plan, read_plan
from strategies.notation import Program

MODES = ("manual", "automatic", "unconstrained", "both")
DEFAULT_LEVELS = ("numerics", "collectives", "tpu-compiler")
HOST_DEVICES, MOST_HOST_DEVICES = 16, 64

Programs = Sequence[Program]
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the user gives beside a plan: programs of their own, its chip's file, the factor that judges a time."""

    programs: Programs = ()
    chip: Chip | None = None
    timing_within: float | None = None


Runner = Callable[[Plan, str, Given], Level]


def verify(
    path: Path,
    *,
    pick: int = 1,
    levels: Sequence[str] | None = None,
    mode: str = "manual",
    programs: Programs = (),
    chip_file: Path | None = None,
    timing_within: float | None = None,
    together: Alone | None = None,
    progress: Progress = lambda _: None,
) -> Report:
    """Run the levels on plan `pick` of a plan file. Level `plan`, whether the file was edited, always runs first.

    `chip_file`: what the plan was made with. `timing_within`: the factor between measured and priced step up to which
    level `timing` passes; without, it only tells them. `together`: one of several processes, from
    `executor.processes.join`. Raises `InputError` on bad input, and where a
    level asked for by name cannot run. Levels that run by default
    and cannot are `skipped`, which never counts as passed; nor does what is only told.
    """
    together = together or Alone()

    def read() -> tuple[Plan, Given]:
        _check(levels, mode, timing_within)
        plan = pick_plan(read_plan(path), path, pick)
        return plan, Given(programs=programs, chip=_chip(plan, chip_file), timing_within=timing_within)

    plan, given = together.same(read, lambda found: _facts(*found, levels, mode))
    _prepare(plan, given, levels or DEFAULT_LEVELS, together.processes)
    results = [_timed(lambda: check_plan_file(plan, programs, given.chip), progress, "plan")]
    if results[0].status == PASSED:
        for level in levels or DEFAULT_LEVELS:
            for one in _modes(level, mode):
                results.append(_run(plan, level, one, given, levels is not None, progress, together))
    ran = [r for r in results if r.level != "plan" and r.status in (PASSED, FAILED)]
    holds = all(r.status != FAILED for r in results) and bool(ran)
    return Report(
        schema=SCHEMA,
        tool_version=VERSION,
        plan=str(path),
        pick=pick,
        summary=_summary(plan, together.processes),
        levels=tuple(results),
        holds=holds,
    )


def _facts(plan: Plan, given: Given, levels: Sequence[str] | None, mode: str) -> Mapping[str, str]:
    """What must be the same in every process that verifies a plan."""
    programs = [repr(dataclasses.replace(program, source="")) for program in given.programs]
    return {
        "meshwright": VERSION,
        "jax": importlib.metadata.version("jax"),
        "plan": _digest(msgspec.json.encode(plan)),
        "--level": ",".join(levels or ("default",)),
        "--mode": mode,
        "--program": _digest("\n".join(programs).encode()),
        "--chip-file": _digest(repr(given.chip).encode()),
    }


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _chip(plan: Plan, path: Path | None) -> Chip | None:
    """The chip of a chip file; raises `InputError` where it is not the plan's, or where the plan needs one."""
    name = plan.slice.partition(":")[0].lower()
    if path is None:
        if ":" in plan.slice and name not in chip_names():
            raise InputError(f"the plan is for {plan.slice}, no built-in chip: pass --chip-file, as for `plan`")
        return None
    chip = read_chip(path)
    if chip.name.lower() != name:
        raise InputError(f"--chip-file '{path}' has the chip {chip.name!r}; the plan is for {plan.slice}")
    return chip


def _prepare(plan: Plan, given: Given, levels: Sequence[str], processes: int) -> None:
    """Host devices for the levels that run on them, this process's share, and for `timing` those of the plan's chip."""
    name = plan.slice.partition(":")[0]
    chip = given.chip or (load_chip(name) if name in chip_names() else None)
    platform = chip.kind if chip and "timing" in levels else "cpu"
    devices = max(HOST_DEVICES, min(plan.devices, MOST_HOST_DEVICES) if platform == "cpu" and given.chip else 0)
    with contextlib.suppress(RuntimeError):  # devices are in use already; a level says so where they are too few
        prepare_environment(host_devices=-(-devices // processes), platform=platform)
    if platform != "cpu":
        platform_devices(platform)  # where it is broken JAX says so once, and then does without


def _check(levels: Sequence[str] | None, mode: str, timing_within: float | None) -> None:
    known = LEVELS[1:]
    for level in levels or ():
        if level not in known:
            raise InputError(f"level '{level}' is not known; expected one of {', '.join(known)}")
    if timing_within is not None and "timing" not in (levels or ()):
        raise InputError("--timing-within judges level timing, which runs only if asked for: --level timing")
    if timing_within is not None and not 1 <= timing_within < math.inf:
        raise InputError(f"--timing-within {timing_within:g}: expected a factor of at least 1, such as 1.5")
    if mode not in MODES:
        raise InputError(f"mode '{mode}' is not known; expected one of {', '.join(MODES)}")


def _modes(level: str, mode: str) -> tuple[str, ...]:
    """The modes of a level: what XLA makes of an exported plan shows in its collectives and its compilation."""
    if level == "numerics":
        return ("manual",)
    return ("manual", "automatic") if mode == "both" else (mode,)


def _run(plan: Plan, level: str, mode: str, given: Given, asked: bool, progress: Progress, together: Alone) -> Level:
    def attempt() -> Level:
        return together.level(level, lambda: _runners()[level](plan, mode, given))

    try:
        return _timed(attempt, progress, f"{level} ({mode})")
    except Unavailable as reason:
        if asked:
            raise InputError(f"level '{level}' cannot run here: {reason}") from None
        return skipped(level, mode, str(reason))
    except InputError as error:
        finding = Finding(what="the plan's programs", promised=f"to run at level {level}", found=str(error))
        return verdict(level, mode, 1, (finding,))


def _runners() -> Mapping[str, Runner]:
    """The levels; each loads what it needs when it runs."""
    return {
        "numerics": _numerics,
        "collectives": _collectives,
        "tpu-compiler": _tpu_compiler,
        "timing": _timing,
    }


def _numerics(plan: Plan, mode: str, given: Given) -> Level:
    from executor.levels.numerics import numerics

    return numerics(plan, mode, programs=given.programs, chip=given.chip)


def _collectives(plan: Plan, mode: str, given: Given) -> Level:
    if mode != "manual":
        from executor.automatic.mode import automatic

        return automatic(plan, "collectives", mode, programs=given.programs, chip=given.chip)
    from executor.levels.host_collectives import host_collectives

    return host_collectives(plan, mode, programs=given.programs, chip=given.chip)


def _tpu_compiler(plan: Plan, mode: str, given: Given) -> Level:
    if mode != "manual":
        from executor.automatic.mode import automatic

        return automatic(plan, "tpu-compiler", mode, programs=given.programs, chip=given.chip)
    from executor.levels.tpu_compiler import tpu_compiler

    return tpu_compiler(plan, mode, programs=given.programs, chip=given.chip)


def _timing(plan: Plan, mode: str, given: Given) -> Level:
    from executor.levels.timing import timing

    return timing(plan, mode, programs=given.programs, chip=given.chip, within=given.timing_within)


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
