"""The commands that prove: `verify` and `calibrate`; and `schema`, of all files. jax loads only when they run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mesh.errors import InputError
from meshwright.commandline import Argument, choice, command, flag, option
from meshwright.options import FILES, OUTPUT, PICK, PLAN_FILE, PROGRESS, format_of
from meshwright.output import progress_line, show, write
from meshwright.parsing import number, whole, words

if TYPE_CHECKING:
    from executor.levels.verdict import Report


@command(
    Argument("name", "[plan|fits|sensitivity|report|validation]", "Of which file.", required=False, default="plan"),
    format_of(default="json"),
)
def schema(*, name: str, style: str) -> None:
    """Print the JSON Schema of a plan file, or of what `verify` or `validate` reports."""
    from meshwright.reports import schema as report_schema

    found = report_schema.schema_of(name, SCHEMAS)
    show(found, lambda: report_schema.fields(found), style)


SCHEMAS = {
    "plan": "planner.plan.planfile:PlanFile",
    "fits": "planner.fits.fits:Fits",
    "sensitivity": "planner.sensitivity.types:SensitivityFile",
    "validation": "planner.validate.scores:Validation",
    "report": "executor.levels.verdict:Report",
}
"""The type of each file that has a schema, loaded when asked for."""


@command(
    PLAN_FILE,
    PICK,
    option(
        "--level levels",
        "LEVEL[,...]",
        "Default: numerics,collectives,tpu-compiler; also: timing.",
        many=True,
        read=words,
    ),
    option(
        "--mode",
        "manual|automatic|unconstrained|both",
        "shard_map; jit with the plan's specs and constraints; with its specs alone; the first two.",
        default="manual",
    ),
    *FILES,
    option("--timing-within", "FACTOR", "Of the priced step: judges level timing.", read=number),
    PROGRESS,
    OUTPUT,
    choice("--format style", ("table", "json", "junit", "markdown"), "How to print.", default="table"),
    option(
        "--coordinator",
        "HOST:PORT",
        "Several processes: where process 0 listens (or JAX_COORDINATOR_ADDRESS).",
    ),
    option("--processes", "N", "How many there are (or JAX_NUM_PROCESSES)."),
    option("--process-id", "I", "Which this one is, from 0 (or JAX_PROCESS_ID)."),
    flag("--distributed", "Ask the cluster for these: a TPU pod, Slurm, ..."),
    option("--timeout", "SECONDS", "How long to wait for the other processes.", default="60"),
)
def verify(
    *,
    file: str,
    pick: int,
    levels: tuple[str, ...],
    mode: str,
    programs: tuple[str, ...],
    chip_file: str | None,
    timing_within: float | None,
    progress: str,
    output: str | None,
    style: str,
    coordinator: str | None,
    processes: str | None,
    process_id: str | None,
    distributed: bool,
    timeout: str,
) -> int:
    """Run and compile a plan, and say whether it does what was promised. Exit 0: it holds; 1: it does not."""
    from executor.levels.verify import verify as run
    from executor.processes.join import hosts_of, joined
    from strategies.layoutfile import read_layout

    given = tuple(program for name in programs for program in read_layout(Path(name)))
    found = {"--coordinator": coordinator, "--processes": processes, "--process-id": process_id}
    with joined(hosts_of(found, distributed=distributed, timeout=timeout)) as together:
        with progress_line(progress if together.process_id == 0 else "never") as say:
            report = run(
                Path(file),
                pick=pick,
                levels=levels or None,
                mode=mode,
                programs=given,
                chip_file=None if chip_file is None else Path(chip_file),
                timing_within=timing_within,
                together=together,
                progress=say,
            )
        return together.last(lambda: _finish(report, style, output))


def _finish(report: Report, style: str, output: str | None) -> int:
    from planner.files import write_whole

    write(_encoded(report, style))
    if output is not None:
        write_whole(Path(output), _encoded(report, style if style == "junit" else "json"))
    if report.only_told:
        raise InputError("nothing was judged: level timing needs --timing-within FACTOR, or another level beside it")
    return 0 if report.holds else 1


def _encoded(report: Report, style: str) -> bytes:
    from meshwright.reports.text import render
    from meshwright.reports.verify import blocks, junit
    from planner.plan.planfile import encode

    if style == "json":
        return encode(report)
    return junit(report) if style == "junit" else render(blocks(report), style).encode("utf-8", "backslashreplace")


@command(
    option("--devices", "cpu|gpu|tpu", "Which of this machine's.", default="cpu"),
    option("--count", "N", "How many; default: all, of a CPU 8.", read=whole),
    flag("--quick", "Rough, and several times quicker."),
    PROGRESS,
    option("-o --output", "CHIP.TOML", "The chip file."),
    format_of(),
)
def calibrate(*, devices: str, count: int | None, quick: bool, progress: str, output: str | None, style: str) -> None:
    """Measure the devices of this machine, and write them as a chip file, which --chip-file takes."""
    from executor.calibrate.calibrate import blocks, chip_file
    from executor.calibrate.calibrate import calibrate as run
    from executor.devices import Unavailable
    from planner.files import check_writable, write_whole

    if output is not None:
        check_writable(Path(output))
    try:
        with progress_line(progress) as say:
            found = run(devices, count=count, quick=quick, progress=say)
    except Unavailable as reason:
        raise InputError(f"--devices {devices}: {reason}") from None
    if output is not None:
        write_whole(Path(output), chip_file(found))
    show(found, lambda: blocks(found, output), style)
