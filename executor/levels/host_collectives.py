"""Level `collectives`: what the compiler made of the plan's step for host devices communicates as was priced.

Compared on the shrunken plan are kind, mesh axes, and elements times runs. The CPU widens bf16 sums to float32 and
may join reductions into one with several operands; nothing else is accepted here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from jax.sharding import Mesh

from executor.compiler.expected import Promise, promises, widths
from executor.compiler.hlo import Collective, collectives
from executor.compiler.rewrites import Difference, Rewrite, compare_collectives
from executor.devices import first_line
from executor.levels.numerics import Maker, check_supported, host_mesh
from executor.levels.shrink import shrink
from executor.levels.verdict import Finding, Level, verdict
from executor.run.engine import engine_of
from executor.run.runnable import Options
from mesh.chips import Chip
from planner.plan.plan import Plan
from strategies.notation import Program

ACCEPTED = ("Widened", "Merged")
_NOTHING = "nothing"


def host_collectives(
    plan: Plan,
    mode: str = "manual",
    *,
    programs: Sequence[Program] = (),
    make: Maker | None = None,
    chip: Chip | None = None,
) -> Level:
    """The level of a plan, on its shrunken copy. `make`: the engine of a mode, if not that of the programs.

    Raises `Unavailable` where devices are missing or the model has what cannot be run, `InputError` on nonsense.
    """
    check_supported(plan)
    small = shrink(plan, programs, chip=chip)
    options = Options(capacity_factor=capacity_factor(small))
    make = make or (lambda p, m: engine_of(p, m, options, programs))
    return check_collectives(small, host_mesh(small), mode, make)


def capacity_factor(plan: Plan) -> float:
    """The factor by which the experts of a plan have the slots that were priced: the mean over its real experts."""
    padded = [after / before for name, (before, after) in plan.padded.items() if name.endswith("/E")]
    return max(padded, default=1.0) * (1 - 1e-9)  # the mean is a whole number, and rounded up


def check_collectives(plan: Plan, mesh: Mesh, mode: str, make: Maker) -> Level:
    """The level of a plan that is small enough to compile for host devices as it is."""
    try:
        text = make(plan, mesh).lower(logits=True).compile().as_text()
    except Exception as error:  # a program that cannot be compiled is a finding, whatever it raises
        found = f"{type(error).__name__}: {first_line(error)}"
        return verdict("collectives", mode, 1, (Finding(what="the step", promised="compiles", found=found),))
    return compared(plan, mesh, mode, text or "")


def compared(plan: Plan, mesh: Mesh, mode: str, text: str) -> Level:
    """The level of a compiled program: every priced collective is a promise, and that there are no others."""
    promised = promises(plan.cost.steps, mesh.shape, widths(plan))
    outcome = compare_collectives(promised, collectives(text), mesh.shape)
    others = [r for r in outcome.rewrites if r.kind not in ACCEPTED]
    findings = (*map(_rewritten, others), *(f for d in outcome.differences for f in _different(d, mesh)))
    return verdict("collectives", mode, len(promised) + 1, findings, tuple(_notes(promised, outcome.rewrites)))


def _notes(promised: Sequence[Promise], rewrites: Sequence[Rewrite]) -> Iterator[str]:
    kinds = Counter(p.kind for p in promised)
    yield "priced: " + (", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items())) or "no collective")
    for kind, n in sorted(Counter(r.kind for r in rewrites if r.kind in ACCEPTED).items()):
        yield f"{n} {kind}"


def _rewritten(r: Rewrite) -> Finding:
    return Finding(what=_steps(r.promised), promised=_priced(r.promised), found=f"{r.kind}: {_compiled(r.found)}")


def _different(d: Difference, mesh: Mesh) -> Iterator[Finding]:
    what = _steps(d.promised) or ", ".join(dict.fromkeys(c.op_name or c.name for c in d.found))
    yield Finding(what=what, promised=_priced(d.promised), found=_compiled(d.found, mesh))


def _steps(promised: Sequence[Promise]) -> str:
    return "; ".join(dict.fromkeys(p.text for p in promised))


def _priced(promised: Sequence[Promise]) -> str:
    texts = [f"{p.kind} over {''.join(p.axes)} of {p.elements:g} elements, {p.runs} times" for p in promised]
    return "; ".join(texts) or _NOTHING


def _compiled(found: Sequence[Collective], mesh: Mesh | None = None) -> str:
    return "; ".join(f"{c.kind}{_over(c, mesh)} of {c.elements} elements, {c.runs} times" for c in found) or _NOTHING


def _over(c: Collective, mesh: Mesh | None) -> str:
    axes = c.axes(mesh.shape) if mesh else None
    return f" over {''.join(axes)}" if axes else ""
