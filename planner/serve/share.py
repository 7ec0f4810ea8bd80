"""Prefill layouts that store the weights as a decode layout does, as far as they can, so that one copy serves both.

A role says which dim of the weights an axis cuts, `N` of `N+B`, and with a star that the program gathers it (`D*+B`):
stored, D* is D. So a prefill whose axes have roles with the decode's letters stores most weights alike. The search
takes roles per physical axis; what it finds is compared with the decode's specs, tensor by tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mesh.slices import Slice
from planner.plan.plan import Plan
from planner.search.candidate import Candidate
from planner.search.problem import Problem, make_problem
from planner.search.search import search
from planner.serve.memory import Pair
from planner.serve.query import ServeQuery
from planner.serve.ways import Priced
from strategies.components import IDLE, Component

COMPARED = 2
"""So many of the best prefill layouts per batch are compared with the decode's weights."""

Letters = tuple[tuple[str, tuple[tuple[int, tuple[str, ...]], ...]], ...]


def sharing(
    asked: ServeQuery, decodes: Sequence[Candidate], prefills: Sequence[Candidate], priced: Priced
) -> list[Candidate]:
    """Prefill candidates with the letters of these decode candidates of one slice, which have equal letters.

    Per prefill batch the fastest, and slower ones whose weights differ less from those of the first decode; only of
    batches whose fastest prefill, one of `prefills`, does not fit beside all of the decodes with its own weights.
    """
    plans, sharing_ = [priced.plan(decode) for decode in decodes], []
    fitting = {p.choice.batch for p in prefills if all(_fits(priced.plan(p), plan, p.slice_) for plan in plans)}
    batches = tuple(batch for batch in asked.prefill_batches if batch not in fitting)
    if not batches:
        return []
    asked = replace(asked, prefill_batches=batches)
    for strict in (False, True):
        problem = _limited(asked, decodes[0], min(plan.memory.kv_bytes for plan in plans), strict)
        for choices in search(problem, COMPARED).choices.values():
            if choices:
                candidates = [Candidate(decodes[0].slice_, problem, choice) for choice in choices]
                sharing_ += _alike(candidates, plans[0], priced)
        if all(any(_kept(priced.plan(c), plan, c.slice_) for c in (*prefills, *sharing_)) for plan in plans):
            break  # else those that leave no axis idle that the decode uses: they store less
    return sharing_


def _alike(candidates: Sequence[Candidate], decode: Plan, priced: Priced) -> list[Candidate]:
    """The first, and each later one that stores more weights as the decode does than those before."""
    kept = [candidates[0]]
    for other in candidates[1:] if _copied(kept[0], decode, priced) else ():
        if _copied(other, decode, priced) < _copied(kept[-1], decode, priced):
            kept.append(other)
    return kept


def _copied(candidate: Candidate, decode: Plan, priced: Priced) -> float:
    """Bytes of the candidate's weights that the decode's do not serve."""
    return Pair(priced.plan(candidate), decode, candidate.slice_).copied_bytes


def _fits(prefill: Plan, decode: Plan, slice_: Slice) -> bool:
    """Return whether both fit without a switch, which costs no time: no slower prefill is of use then."""
    return _kept(prefill, decode, slice_) in ("shared", "copies")


def _kept(prefill: Plan, decode: Plan, slice_: Slice) -> str | None:
    held = Pair(prefill, decode, slice_).kept(at_once=False)
    return held.weights if held else None


def leaner(asked: ServeQuery, batches: Sequence[int], prefills: Sequence[Candidate], priced: Priced) -> list[Candidate]:
    """The best decode candidates of these batches that leave a slice room for the least that a prefill works with."""
    if not prefills or not batches:
        return []
    plans = [priced.plan(prefill) for prefill in prefills]
    room = min(plan.memory.kv_bytes + plan.memory.activation_bytes for plan in plans)
    problem = make_problem(asked.of("decode").at(*batches), prefills[0].slice_)
    problem = replace(problem, usable_bytes=problem.usable_bytes - room)
    return [Candidate(problem.slice_, problem, c) for cs in search(problem, 1).choices.values() for c in cs[:1]]


def by_letters(decodes: Sequence[Candidate]) -> list[list[Candidate]]:
    """Decode candidates of one slice, those with equal letters together, in the order of the first of each."""
    by_key: dict[Letters, list[Candidate]] = {}
    for one in decodes:
        key = tuple(
            (name, tuple((axis, tuple(sorted(cut))) for axis, cut in of.items())) for name, of in letters(one).items()
        )
        by_key.setdefault(key, []).append(one)
    return list(by_key.values())


def letters(decode: Candidate) -> dict[str, dict[int, frozenset[str]]]:
    """Return which dims of the weights a decode layout cuts, by component and physical axis; `-` for none."""
    choice, cut_by = decode.choice, dict[str, dict[int, frozenset[str]]]()
    for component, pick in zip(decode.problem.components, choice.picks, strict=True):
        of = cut_by.setdefault(component.name, {})
        body = component.body(pick.body)
        for piece, axis in zip(choice.mesh, pick.axes, strict=True):
            cut = body.role_name(axis).partition("+")[0]
            of[piece.axis] = of.get(piece.axis, frozenset()) | {cut}
    return cut_by


def _limited(asked: ServeQuery, decode: Candidate, least_kv_bytes: float, strict: bool) -> Problem:
    """The prefill problem with the decode's letters, in the HBM that the decode's caches leave.

    `strict`: an axis of which the decode uses a part must be used.
    """
    problem = make_problem(asked.of("prefill"), decode.slice_)
    cuts = letters(decode)
    fixed = {
        component.name: {
            axis: _roles(component, cut - {IDLE} if strict and cut != {IDLE} else cut)
            for axis, cut in cuts.get(component.name, {}).items()
        }
        for component in problem.components
    }
    return replace(problem, fixed=fixed, usable_bytes=problem.usable_bytes - least_kv_bytes)


def _roles(component: Component, cut: frozenset[str]) -> frozenset[str]:
    """The component's roles with one of these letters, whether the weights are gathered or not."""
    names = {role.name for body in component.bodies for role in body.parts[0].program.roles}
    return frozenset({IDLE} & cut) | {name for name in names if name.partition("+")[0].rstrip("*") in cut}
