"""Explain why there is no plan: nothing fits, or nothing meets the targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from mesh.errors import MeshwrightError
from mesh.slices import Slice, slices_of
from planner.best.sweep import rejected
from planner.plan.planfile import Rejected, Search
from planner.query.query import Query
from planner.query.targets import Target, Targets
from planner.search.candidate import Candidate
from planner.search.problem import SearchResult, make_problem
from planner.search.search import search


class NothingFits(MeshwrightError):
    """Raised where no layout fits, or none meets the targets, with the reason.

    `rejected` has the assignments that were excluded, by reason; `smallest` names the smallest slice of the same chip
    on which a layout fits; `search` describes what was searched.
    """

    def __init__(self, why: str, rejected: tuple[Rejected, ...], smallest: str | None, covered: Search) -> None:
        super().__init__(why)
        self.rejected, self.smallest, self.search = rejected, smallest, covered


def why_none(candidates: Sequence[Candidate], query: Query) -> str:
    """Return in words the target that no candidate meets, or the targets that none meets at once.

    The sentence says how near the nearest candidate comes. Raises `AssertionError` where some candidate meets all.
    """
    targets = [target for target, _ in query.targets.given()]
    misses = [set(query.targets.missed(c)) for c in candidates]
    for count in range(1, len(targets) + 1):
        for subset in combinations(targets, count):
            if all(set(subset) & miss for miss in misses):
                return _sentence(subset, candidates, misses, query.targets)
    raise AssertionError("some candidate meets every target")


def _sentence(
    subset: Sequence[Target], candidates: Sequence[Candidate], misses: Sequence[set[Target]], targets: Targets
) -> str:
    """Say how near the candidates that meet the other targets come to the last one."""
    *others, last = subset
    near = [c for c, miss in zip(candidates, misses, strict=True) if not set(others) & miss]
    best = min(near, key=lambda c: (last.short_of(c), c.slice_.chips, c.slice_.name, c.choice.batch))
    words = [targets.says(target) for target in subset]
    sentence = f"no plan meets {words[0]}" if not others else f"no plan meets {' and '.join(words)} together"
    suffix = f"; with {' and '.join(words[:-1])} the nearest has" if others else "; the nearest has"
    value = last.value(best)
    assert value is not None  # the query's phase has the figure, as `Query.check_targets` has checked
    return f"{sentence}{suffix} {last.figure(value)} ({best.slice_.name}, batch {best.choice.batch})"


def nothing_fits(query: Query, results: Mapping[str, SearchResult], covered: Search) -> NothingFits:
    """Return the error where no layout fits, about the query's largest slice and smallest batch."""
    slice_ = max(query.slices, key=lambda s: (s.chips, s.name))
    batch = min(query.work.batches)
    least_bytes = results[slice_.name].least_bytes.get(batch)
    usable = slice_.chip.usable_hbm_bytes_per_device
    if least_bytes is None:
        why = f"no layout of {query.model.name} divides over {slice_.name} at batch {batch}"
    else:
        why = (
            f"{query.model.name} does not fit on {slice_.name}: at batch {batch} it needs {least_bytes / 1e9:.2f} GB "
            f"per device at the least, and {usable / 1e9:.2f} GB are usable"
        )
    return NothingFits(why, rejected(results), _smallest(query, slice_, batch), covered)


def _smallest(query: Query, slice_: Slice, batch: int) -> str | None:
    """Return the name of the smallest larger slice of the same chip on which that batch fits, or None."""
    unlimited = replace(query.at(batch), fixed={}, targets=Targets())
    for larger in slices_of(slice_.chip):
        if larger.chips > slice_.chips and search(make_problem(unlimited, larger), 1).choices.get(batch):
            return larger.name
    return None
