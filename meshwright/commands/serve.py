"""The command `plan --phase serve`: its options become a question of both phases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mesh.errors import InputError
from meshwright.commandline import one_of, words
from meshwright.options import Asked
from meshwright.output import ended, finish, progress_line, show_nothing

_TOKENS = ("input_tokens", "output_tokens")


def serve(asked: Asked) -> int:
    """Search for ways to serve, print and write them, and return the exit code."""
    from meshwright.reports.serve import report
    from planner.api import serve as run
    from planner.best.nothing import NothingFits

    options = dict(asked.options)
    del options["phase"]
    _refuse_others(options)
    if missing := [f"--{name.replace('_', '-')}" for name in _TOKENS if name not in options]:
        raise InputError(f"--phase serve: {' and '.join(missing)} missing; expected tokens, such as 2000")
    options["serving"] = modes(options.get("serving", ()))
    try:
        with progress_line(asked.progress) as say:
            plans = run(asked.model, asked.slices, progress=say, **options)
    except NothingFits as nothing:
        return show_nothing(nothing, asked.style)
    finish(plans, lambda: report(plans), asked.style, asked.output)
    return ended(plans)


def modes(serving: Sequence[str]) -> tuple[str, ...]:
    """Return the ways to serve that `--serving` names.

    >>> modes(["batched,disaggregated"]), modes([]) == modes(["all"])
    (('batched', 'disaggregated'), True)
    """
    from planner.plan.file_serving import MODES

    named = words("--serving", serving) if serving else ("all",)
    for name in named:
        one_of("--serving", name, (*MODES, "all"))
    return MODES if "all" in named else named


def _refuse_others(options: dict[str, Any]) -> None:
    """Remove options of a single phase from the keywords; raise `InputError` where one was given."""
    fix, num_slices, context = (options.pop(name, None) for name in ("fix", "num_slices", "context"))
    for component, axes in (fix or {}).items():
        roles = ",".join(f"{axis}:{role}" for axis, role in axes.items())
        raise InputError(f"--fix {component}={roles}: --phase serve does not take it; plan a phase alone for that")
    if num_slices != 1:
        raise InputError(
            f"--num-slices {num_slices}: --phase serve does not take it; it says itself how many slices serve"
        )
    if context is not None:
        raise InputError(
            f"--context {context}: --phase serve does not take it; it is the sum of --input-tokens and --output-tokens"
        )
