"""Level `collectives` compiles the plan's step for host devices and compares its collectives with the priced ones.

The comparison runs on the shrunken plan (`shrink`) and covers each collective's kind, mesh axes, elements and number
of runs. The CPU compiler computes bf16 sums in float32 (`Widened`) and may merge several reductions into one with
several operands (`Merged`); this level accepts no other rewrite.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from jax.sharding import Mesh

from executor.compiler.expected import ExpectedCollective, expected_collectives, widths
from executor.compiler.hlo import Collective, collectives
from executor.compiler.rewrites import Difference, Rewrite, compare_collectives
from executor.levels.common import MakeEngine, capacity_factor, check_supported, host_mesh, raised
from executor.levels.level import MANUAL, LevelOptions
from executor.levels.shrink import shrink
from executor.loaded import Loaded
from executor.run.engine import engine_of
from executor.run.runnable import RunOptions
from executor.verdict import Finding, Level, verdict
from planner.plan.plan import Plan

ACCEPTED = ("Widened", "Merged")
_NOTHING = "nothing"


def host_collectives(loaded: Loaded, options: LevelOptions = MANUAL) -> Level:
    """Return the level `collectives` of a plan, compiled as its shrunken copy in the plan's own dtypes.

    Raises `Unavailable` if the model cannot be run, or if there are too few host devices.
    """
    check_supported(loaded.plan)
    small = shrink(loaded)
    slots = RunOptions(capacity_factor=capacity_factor(small.plan))
    return check_collectives(
        small, host_mesh(small), options.mode, lambda shrunken, mesh: engine_of(shrunken, mesh, slots)
    )


def check_collectives(loaded: Loaded, mesh: Mesh, mode: str, make: MakeEngine) -> Level:
    """Return the level `collectives` of a plan that is small enough to compile for host devices as it is.

    `make` builds the engine. A step that does not compile fails the level.
    """
    try:
        text = make(loaded, mesh).lower(logits=True).compile().as_text()
    except Exception as error:  # a program that cannot be compiled is a finding, whatever it raises
        return verdict("collectives", mode, 1, (raised("the step", "compiles", error),))
    return judge_program(loaded.plan, mesh, mode, text or "")


def judge_program(plan: Plan, mesh: Mesh, mode: str, text: str) -> Level:
    """Return the level `collectives` of a compiled program, given its HLO text.

    Each expected collective counts as one check; that the program has no others is one more.
    """
    expected = expected_collectives(plan.cost.steps, mesh.shape, widths(plan))
    outcome = compare_collectives(expected, collectives(text), mesh.shape)
    unaccepted = [r for r in outcome.rewrites if r.kind not in ACCEPTED]
    findings = (
        *map(_rewrite_finding, unaccepted),
        *(f for difference in outcome.differences for f in _difference_findings(difference, mesh)),
    )
    return verdict("collectives", mode, len(expected) + 1, findings, tuple(_notes(expected, outcome.rewrites)))


def _notes(expected: Sequence[ExpectedCollective], rewrites: Sequence[Rewrite]) -> Iterator[str]:
    kinds = Counter(p.kind for p in expected)
    yield "priced: " + (", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items())) or "no collective")
    for kind, n in sorted(Counter(r.kind for r in rewrites if r.kind in ACCEPTED).items()):
        yield f"{n} {kind}"


def _rewrite_finding(rewrite: Rewrite) -> Finding:
    return Finding(
        what=_step_texts(rewrite.expected),
        promised=_describe_expected(rewrite.expected),
        found=f"{rewrite.kind}: {_describe_compiled(rewrite.compiled)}",
    )


def _difference_findings(difference: Difference, mesh: Mesh) -> Iterator[Finding]:
    what = _step_texts(difference.expected) or ", ".join(
        dict.fromkeys(c.op_name or c.name for c in difference.compiled)
    )
    yield Finding(
        what=what, promised=_describe_expected(difference.expected), found=_describe_compiled(difference.compiled, mesh)
    )


def _step_texts(expected: Sequence[ExpectedCollective]) -> str:
    return "; ".join(dict.fromkeys(p.text for p in expected))


def _describe_expected(expected: Sequence[ExpectedCollective]) -> str:
    texts = [f"{p.kind} over {''.join(p.axes)} of {p.elements:g} elements, {p.runs} times" for p in expected]
    return "; ".join(texts) or _NOTHING


def _describe_compiled(compiled: Sequence[Collective], mesh: Mesh | None = None) -> str:
    return (
        "; ".join(f"{c.kind}{_axes_text(c, mesh)} of {c.elements} elements, {c.runs} times" for c in compiled)
        or _NOTHING
    )


def _axes_text(c: Collective, mesh: Mesh | None) -> str:
    axes = c.axes(mesh.shape) if mesh else None
    return f" over {''.join(axes)}" if axes else ""
