"""`verify`: runs the levels on one plan and says whether it does what was promised."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from executor.devices import Unavailable, prepare_environment
from executor.integrity import check_plan_file
from executor.verdict import FAILED, LEVELS, PASSED, SCHEMA, Finding, Level, Report, skipped, verdict
from mesh.errors import InputError
from planner.plan import Plan, pick_plan, read_plan
from planner.version import VERSION
from strategies.notation import Program

MODES = ("manual", "automatic", "both")
DEFAULT_LEVELS = ("numerics", "collectives", "tpu-compiler")
HOST_DEVICES = 16

Programs = Sequence[Program]
Runner = Callable[[Plan, str, Programs], Level]
Progress = Callable[[str], None]


def verify(
    path: Path,
    *,
    pick: int = 1,
    levels: Sequence[str] | None = None,
    mode: str = "manual",
    programs: Programs = (),
    progress: Progress = lambda _: None,
) -> Report:
    """Run the levels on plan `pick` of a plan file. Level `plan`, whether the file was edited, always runs first.

    Raises `InputError` on bad input, and where a level asked for by name cannot run. Levels that run by default
    and cannot are `skipped`, which never counts as passed.
    """
    _check(levels, mode)
    plan = pick_plan(read_plan(path), path, pick)
    with contextlib.suppress(RuntimeError):  # devices are in use already; a level says so where they are too few
        prepare_environment(host_devices=HOST_DEVICES)
    results = [_timed(lambda: check_plan_file(plan, programs), progress, "plan")]
    if results[0].status == PASSED:
        for level in levels or DEFAULT_LEVELS:
            for one in _modes(level, mode):
                results.append(_run(plan, level, one, programs, levels is not None, progress))
    ran = [r for r in results if r.level != "plan" and r.status in (PASSED, FAILED)]
    holds = all(r.status != FAILED for r in results) and bool(ran)
    return Report(
        schema=SCHEMA,
        tool_version=VERSION,
        plan=str(path),
        pick=pick,
        summary=_summary(plan),
        levels=tuple(results),
        holds=holds,
    )


def _check(levels: Sequence[str] | None, mode: str) -> None:
    known = LEVELS[1:]
    for level in levels or ():
        if level not in known:
            raise InputError(f"level '{level}' is not known; expected one of {', '.join(known)}")
    if mode not in MODES:
        raise InputError(f"mode '{mode}' is not known; expected one of {', '.join(MODES)}")


def _modes(level: str, mode: str) -> tuple[str, ...]:
    """The modes of a level: what XLA makes of an exported plan shows in its collectives and its compilation."""
    if level == "numerics":
        return ("manual",)
    return ("manual", "automatic") if mode == "both" else (mode,)


def _run(plan: Plan, level: str, mode: str, programs: Programs, asked: bool, progress: Progress) -> Level:
    def attempt() -> Level:
        return _runners()[level](plan, mode, programs)

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
    return {"numerics": _numerics, "collectives": _collectives, "tpu-compiler": _tpu_compiler}


def _numerics(plan: Plan, mode: str, programs: Programs) -> Level:
    from executor.numerics import numerics

    return numerics(plan, mode, programs=programs)


def _collectives(plan: Plan, mode: str, programs: Programs) -> Level:
    if mode == "automatic":
        from executor.automatic import automatic

        return automatic(plan, "collectives", programs=programs)
    from executor.host_collectives import host_collectives

    return host_collectives(plan, mode, programs=programs)


def _tpu_compiler(plan: Plan, mode: str, programs: Programs) -> Level:
    if mode == "automatic":
        from executor.automatic import automatic

        return automatic(plan, "tpu-compiler", programs=programs)
    from executor.tpu import tpu_compiler

    return tpu_compiler(plan, mode)


def _timed(run: Callable[[], Level], progress: Progress, what: str) -> Level:
    progress(f"checking {what}")
    started = time.perf_counter()
    return msgspec.structs.replace(run(), seconds=time.perf_counter() - started)


def _summary(plan: Plan) -> str:
    mesh = " ".join(f"{n}{s}" for n, s in zip(plan.mesh.axis_names, plan.mesh.axis_sizes, strict=True))
    work = f"{plan.phase} at batch {plan.batch}, context {plan.context}"
    return f"{plan.model.name}, {work}, on {plan.slice} as {mesh or '1'}"
