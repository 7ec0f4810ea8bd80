"""Level `collectives`: what the compiler made of the plan's step for host devices communicates as was priced.

Compared on the shrunken plan are kind, mesh axes, and elements times runs. The CPU widens bf16 sums to float32 and
may join reductions into one with several operands; nothing else is accepted here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from jax.sharding import Mesh

from executor.compiler.expected import ExpectedCollective, promises, widths
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
    """The level of a plan, on its shrunken copy and in the plan's own dtypes."""
    check_supported(loaded.plan)
    small = shrink(loaded)
    slots = RunOptions(capacity_factor=capacity_factor(small.plan))
    return check_collectives(small, host_mesh(small), options.mode, lambda one, mesh: engine_of(one, mesh, slots))


def check_collectives(loaded: Loaded, mesh: Mesh, mode: str, make: MakeEngine) -> Level:
    """The level of a plan that is small enough to compile for host devices as it is."""
    try:
        text = make(loaded, mesh).lower(logits=True).compile().as_text()
    except Exception as error:  # a program that cannot be compiled is a finding, whatever it raises
        return verdict("collectives", mode, 1, (raised("the step", "compiles", error),))
    return compared(loaded.plan, mesh, mode, text or "")


def compared(plan: Plan, mesh: Mesh, mode: str, text: str) -> Level:
    """The level of a compiled program: every priced collective is a promise, and that there are no others."""
    promised = promises(plan.cost.steps, mesh.shape, widths(plan))
    outcome = compare_collectives(promised, collectives(text), mesh.shape)
    others = [r for r in outcome.rewrites if r.kind not in ACCEPTED]
    findings = (*map(_rewritten, others), *(f for d in outcome.differences for f in _different(d, mesh)))
    return verdict("collectives", mode, len(promised) + 1, findings, tuple(_notes(promised, outcome.rewrites)))


def _notes(promised: Sequence[ExpectedCollective], rewrites: Sequence[Rewrite]) -> Iterator[str]:
    kinds = Counter(p.kind for p in promised)
    yield "priced: " + (", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items())) or "no collective")
    for kind, n in sorted(Counter(r.kind for r in rewrites if r.kind in ACCEPTED).items()):
        yield f"{n} {kind}"


def _rewritten(r: Rewrite) -> Finding:
    return Finding(what=_steps(r.promised), promised=_priced(r.promised), found=f"{r.kind}: {_compiled(r.found)}")


def _different(d: Difference, mesh: Mesh) -> Iterator[Finding]:
    what = _steps(d.promised) or ", ".join(dict.fromkeys(c.op_name or c.name for c in d.found))
    yield Finding(what=what, promised=_priced(d.promised), found=_compiled(d.found, mesh))


def _steps(promised: Sequence[ExpectedCollective]) -> str:
    return "; ".join(dict.fromkeys(p.text for p in promised))


def _priced(promised: Sequence[ExpectedCollective]) -> str:
    texts = [f"{p.kind} over {''.join(p.axes)} of {p.elements:g} elements, {p.runs} times" for p in promised]
    return "; ".join(texts) or _NOTHING


def _compiled(collectives_: Sequence[Collective], mesh: Mesh | None = None) -> str:
    return (
        "; ".join(f"{c.kind}{_over(c, mesh)} of {c.elements} elements, {c.runs} times" for c in collectives_)
        or _NOTHING
    )


def _over(c: Collective, mesh: Mesh | None) -> str:
    axes = c.axes(mesh.shape) if mesh else None
    return f" over {''.join(axes)}" if axes else ""
