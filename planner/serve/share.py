"""Find prefill layouts that store the weights as a decode layout does, as far as possible, so that one copy is enough.

A role names the dim of the weights that an axis cuts, `N` of `N+B`, and has a star where the program gathers it
(`D*+B`): stored, D* is D. So a prefill whose axes have roles with the decode's letters stores most weights alike. The
search takes roles per physical axis; its layouts are compared with the decode's specs, tensor by tensor.
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

LAYOUTS_COMPARED = 2
"""Number of best prefill layouts per batch that are compared with the decode's weights."""

Letters = tuple[tuple[str, tuple[tuple[int, tuple[str, ...]], ...]], ...]


def sharing_prefills(
    serve_query: ServeQuery, decodes: Sequence[Candidate], prefills: Sequence[Candidate], priced: Priced
) -> list[Candidate]:
    """Return prefill candidates with the letters of these decode candidates of one slice, which have equal letters.

    Per prefill batch the fastest is returned, and slower ones whose weights differ less from those of the first decode.
    Only batches are searched whose fastest prefill, one of `prefills`, does not fit beside all of the decodes with its
    own weights.
    """
    plans, result = [priced.plan(decode) for decode in decodes], []
    fitting = {p.choice.batch for p in prefills if all(_fits(priced.plan(p), plan, p.slice_) for plan in plans)}
    batches = tuple(batch for batch in serve_query.prefill_batches if batch not in fitting)
    if not batches:
        return []
    serve_query = replace(serve_query, prefill_batches=batches)
    for strict in (False, True):
        problem = _limited(serve_query, decodes[0], min(plan.memory.kv_bytes for plan in plans), strict)
        for choices in search(problem, LAYOUTS_COMPARED).choices.values():
            if choices:
                candidates = [Candidate(decodes[0].slice_, problem, choice) for choice in choices]
                result += _alike(candidates, plans[0], priced)
        if all(any(_weights_mode(priced.plan(c), plan, c.slice_) for c in (*prefills, *result)) for plan in plans):
            break  # otherwise try layouts that leave no axis idle that the decode uses: they store less
    return result


def _alike(candidates: Sequence[Candidate], decode: Plan, priced: Priced) -> list[Candidate]:
    """Return the first candidate, and each later one that stores more weights as the decode does than those before."""
    result = [candidates[0]]
    for other in candidates[1:] if _copied(result[0], decode, priced) else ():
        if _copied(other, decode, priced) < _copied(result[-1], decode, priced):
            result.append(other)
    return result


def _copied(candidate: Candidate, decode: Plan, priced: Priced) -> float:
    """Return the bytes of the candidate's weights for which the decode's cannot be used."""
    return Pair(priced.plan(candidate), decode, candidate.slice_).copied_bytes


def _fits(prefill: Plan, decode: Plan, slice_: Slice) -> bool:
    """Return whether both fit without a switch; then no slower prefill is of use."""
    return _weights_mode(prefill, decode, slice_) in ("shared", "copies")


def _weights_mode(prefill: Plan, decode: Plan, slice_: Slice) -> str | None:
    """Return how the weights of both are stored so that they fit, or None."""
    shared_hbm = Pair(prefill, decode, slice_).shared_hbm(at_once=False)
    return shared_hbm.weights if shared_hbm else None


def leaner_decodes(
    serve_query: ServeQuery, batches: Sequence[int], prefills: Sequence[Candidate], priced: Priced
) -> list[Candidate]:
    """Return the best decode candidates of these batches that leave room for the least working set of a prefill."""
    if not prefills or not batches:
        return []
    plans = [priced.plan(prefill) for prefill in prefills]
    room = min(plan.memory.kv_bytes + plan.memory.activation_bytes for plan in plans)
    problem = make_problem(serve_query.phase_query("decode").at(*batches), prefills[0].slice_)
    problem = replace(problem, usable_bytes=problem.usable_bytes - room)
    return [Candidate(problem.slice_, problem, c) for cs in search(problem, 1).choices.values() for c in cs[:1]]


def by_letters(decodes: Sequence[Candidate]) -> list[list[Candidate]]:
    """Group decode candidates of one slice by their letters, in the order of the first of each."""
    groups: dict[Letters, list[Candidate]] = {}
    for decode in decodes:
        key = tuple(
            (name, tuple((axis, tuple(sorted(cut))) for axis, cut in cuts.items()))
            for name, cuts in letters(decode).items()
        )
        groups.setdefault(key, []).append(decode)
    return list(groups.values())


def letters(decode: Candidate) -> dict[str, dict[int, frozenset[str]]]:
    """Return the dims of the weights that a decode layout cuts, by component and physical axis; `-` for none."""
    choice, result = decode.choice, dict[str, dict[int, frozenset[str]]]()
    for component, pick in zip(decode.problem.components, choice.picks, strict=True):
        cuts_of_axis = result.setdefault(component.name, {})
        body = component.body(pick.body)
        for piece, axis in zip(choice.mesh, pick.axes, strict=True):
            cut = body.role_name(axis).partition("+")[0]
            cuts_of_axis[piece.axis] = cuts_of_axis.get(piece.axis, frozenset()) | {cut}
    return result


def _limited(serve_query: ServeQuery, decode: Candidate, least_kv_bytes: float, strict: bool) -> Problem:
    """Return the prefill problem with the decode's letters, in the HBM beside the decode's caches.

    With `strict` an axis of which the decode uses a part must be used.
    """
    problem = make_problem(serve_query.phase_query("prefill"), decode.slice_)
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
    """Return the component's roles with one of these letters, whether the weights are gathered or not."""
    names = {role.name for body in component.bodies for role in body.parts[0].program.roles}
    return frozenset({IDLE} & cut) | {name for name in names if name.partition("+")[0].rstrip("*") in cut}
