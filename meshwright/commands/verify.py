"""The command `verify`, which proves a plan. jax loads only when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesh.errors import InputError
from meshwright.commandline import choice, command, flag, number, option, words
from meshwright.options import FILES, OUTPUT, PICK, PLAN_FILE, PROGRESS, WIDE
from meshwright.output import finish, progress_line

if TYPE_CHECKING:
    from executor.levels.verify import Verification
    from executor.verdict import Report


HOSTS = ("coordinator", "processes", "process_id", "distributed", "timeout")
"""The parameters that say how this process finds the others."""


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
    WIDE,
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
def verify(*, file: str, progress: str, output: str | None, style: str, **given: Any) -> int:
    """Run and compile a plan, and say whether it does what was promised. Exit 0: it holds; 1: it does not.

    \b
    meshwright verify plan.json --level numerics,collectives --format junit -o report.xml
    """
    from executor.levels.verify import verify as run
    from executor.processes.join import joined
    from meshwright.hosts import hosts_of

    hosts = hosts_of(**{name: given.pop(name) for name in HOSTS})
    asked = _asked(file, **given)
    with joined(hosts) as together:
        with progress_line(progress if together.process_id == 0 else "never") as say:
            report = run(asked, together=together, progress=say)
        return together.last(lambda: _finish(report, style, output))


def _asked(
    file: str, programs: tuple[str, ...], chip_file: str | None, levels: tuple[str, ...], **given: Any
) -> Verification:
    from executor.levels.verify import Verification
    from strategies.layoutfile import read_layout

    return Verification(
        path=Path(file),
        levels=levels or None,
        programs=tuple(program for name in programs for program in read_layout(Path(name))),
        chip_file=None if chip_file is None else Path(chip_file),
        **given,
    )


def _finish(report: Report, style: str, output: str | None) -> int:
    from meshwright.reports.verify import blocks, junit

    as_junit = junit(report) if style == "junit" else None
    finish(report, lambda: as_junit or blocks(report), style, output, as_junit)
    if report.only_told:
        raise InputError("nothing was judged: level timing needs --timing-within FACTOR, or another level beside it")
    return 0 if report.holds else 1
