"""Candidates that meet the targets; and where none does, which targets stand in the way."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from mesh.errors import InputError
from planner.best.candidate import Candidate
from planner.query.request import Request


def meeting(candidates: Sequence[Candidate], request: Request) -> list[Candidate]:
    """Those that meet every target. The best of a slice and batch does, if any layout of it does."""
    return [c for c in candidates if not missed(c, request)]


def missed(candidate: Candidate, request: Request) -> tuple[str, ...]:
    """The targets that a candidate misses."""
    phase, step_s = request.work.phase, candidate.choice.step_s
    return request.targets.missed(phase, step_s, candidate.tokens_per_s, candidate.slice_.chips)


def check_phase(request: Request) -> None:
    """Raise `InputError` on a target that is none of the request's phase."""
    if request.targets.max_ttft_s is not None and request.work.phase == "decode":
        raise InputError("--max-ttft-ms: a decode step has no first token; expected --phase prefill or serve with it")


def why_none(candidates: Sequence[Candidate], request: Request) -> str:
    """Which target none meets, or which two no candidate meets together, and how near the nearest comes."""
    targets, misses = request.targets.words, [set(missed(c, request)) for c in candidates]
    for count in range(1, len(targets) + 1):
        for some in combinations(targets, count):
            if all(set(some) & miss for miss in misses):
                return _sentence(some, candidates, misses)
    raise AssertionError("some candidate meets every target")


def _sentence(some: Sequence[str], candidates: Sequence[Candidate], misses: Sequence[set[str]]) -> str:
    """Of the last of these targets: how near those come that meet the others."""
    last = some[-1]
    near = [c for c, miss in zip(candidates, misses, strict=True) if not set(some[:-1]) & miss]
    best = min(near, key=lambda c: (_short_of(last, c), c.slice_.chips, c.slice_.name, c.choice.batch))
    says = f"no plan meets {last}" if len(some) == 1 else f"no plan meets {' and '.join(some)} together"
    within = f"; with {' and '.join(some[:-1])} the nearest has" if len(some) > 1 else "; the nearest has"
    return f"{says}{within} {_figure(last, best)} ({best.slice_.name}, batch {best.choice.batch})"


def _short_of(target: str, candidate: Candidate) -> float:
    if target.startswith("--min-tokens-per-s"):
        return -candidate.tokens_per_s
    return candidate.slice_.chips if target.startswith("--max-chips") else candidate.choice.step_s


def _figure(target: str, candidate: Candidate) -> str:
    if target.startswith("--min-tokens-per-s"):
        return f"{candidate.tokens_per_s:,.4g} tokens/s"
    if target.startswith("--max-chips"):
        return f"{candidate.slice_.chips} chips"
    return f"{candidate.choice.step_s * 1e3:.4g} ms"
