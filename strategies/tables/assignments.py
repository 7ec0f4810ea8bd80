"""Assignments of a body's roles to mesh axes: listing them, and ruling out those whose dims do not divide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from strategies.components import IDLE, Body, Component
from strategies.readers.axis_sets import Masks, RoleSets, halves
from strategies.readers.fit import fit_part
from strategies.readers.rates import Ints, Rates
from strategies.readers.sizes import PaddedSizes

Rows = NDArray[np.int8]
Rejection = tuple[str, str, int, dict[str, float]]
"""Component, reason, how many assignments, and the numbers of an example."""
LISTED_AT_ONCE = 1 << 18
"""So many assignments are listed at once, and shared by meshes of equally many axes; more grow axis by axis."""


def assignments(
    component: Component,
    body: Body,
    rates: Rates,
    batches: Ints,
    allowed: tuple[frozenset[str], ...],
    most_roles: int | None = None,
) -> tuple[Rows, RoleSets, list[Rejection]]:
    """Assignments of the body's roles to mesh axes, and what was ruled out while listing them.

    `allowed[i]` are the program axes that mesh axis i may have. Every assignment that can run is listed, if it has
    no more than `most_roles` different roles (None: any number).
    """
    if most_roles is not None or np.prod([len(names) for names in allowed], dtype=float) <= LISTED_AT_ONCE:
        return *_listed(body, allowed, most_roles), []
    return _grown(component, body, rates, batches, allowed)


@lru_cache(maxsize=64)
def _listed(body: Body, allowed: tuple[frozenset[str], ...], most_roles: int | None) -> tuple[Rows, RoleSets]:
    """All of them: slices and meshes of equally many axes share the list."""
    choices = (*body.axes, IDLE)
    rows = enumerate_rows(len(choices), len(allowed))
    for i, names in enumerate(allowed):
        if not names.issuperset(choices):
            rows = rows[np.array([choice in names for choice in choices])[rows[:, i]]]
    rows = _required_rows(rows, body, choices)
    if most_roles is not None:
        used, bits = np.zeros(len(rows), dtype=np.int64), np.array([(c != IDLE) << n for n, c in enumerate(choices)])
        for column in rows.T:
            used |= bits[column]
        rows = rows[np.bitwise_count(used) <= most_roles]
    return rows, role_sets_of(rows, choices)


def _grown(
    component: Component, body: Body, rates: Rates, batches: Ints, allowed: tuple[frozenset[str], ...]
) -> tuple[Rows, RoleSets, list[Rejection]]:
    """All but those of which the first axes alone cut some dim so that it does not divide.

    More axes cut it no better: what does not divide c ways, or only with too much padding, does not divide a multiple
    of c ways either. Needs of another kind (`whole`, `requires`) are left for later.
    """
    choices = (*body.axes, IDLE)
    rows, rejected = np.zeros((1, 0), dtype=np.int8), list[Rejection]()
    parts = [replace(part, needs=replace(part.needs, whole=())) for part in body.parts]
    for number, names in enumerate(allowed):
        options = np.array([i for i, choice in enumerate(choices) if choice in names], dtype=np.int8)
        rows = np.column_stack([np.repeat(rows, len(options), axis=0), np.tile(options, len(rows))])
        if number < len(allowed) - 1:
            each = _ends(rows, body, choices, allowed[number + 1 :])
            fits = [fit_part(part, component, rates, masks_of(rows, choices), batches) for part in parts]
            rejected += [r for one in fits for r in rejections(one, component, batches, each)]
            rows = rows[np.logical_and.reduce([one.ok for one in fits]).any(axis=1)]
    rows = _required_rows(rows, body, choices)
    return rows, role_sets_of(rows, choices), rejected


def _ends(rows: Rows, body: Body, choices: Sequence[str], later: Sequence[frozenset[str]]) -> Ints:
    """[rows]: in how many ways the later axes may go on, a required role in each whole assignment."""
    required = _required(body)
    every = np.prod([len(names) for names in later], dtype=np.int64)
    if not required:
        return np.full(len(rows), every)
    without = np.prod([len(names - required) for names in later], dtype=np.int64)
    return np.where(_has_any_role(rows, choices, required), every, every - without)


def _required(body: Body) -> frozenset[str]:
    return frozenset(axis for part in body.parts for axis in part.program.requires)


def _has_any_role(rows: Rows, choices: Sequence[str], axes: frozenset[str]) -> NDArray[np.bool_]:
    return np.asarray(np.isin(rows, [i for i, axis in enumerate(choices) if axis in axes]).any(axis=1))


def _required_rows(rows: Rows, body: Body, choices: Sequence[str]) -> Rows:
    """Rows in which some mesh axis has a role that the program requires; without it the program is another's."""
    required = _required(body)
    return rows[_has_any_role(rows, choices, required)] if required else rows


def enumerate_rows(choices: int, axes: int) -> Rows:
    """Every assignment of `choices` roles to `axes` mesh axes: [choices ** axes, axes], indices of choices.

    >>> enumerate_rows(2, 2).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    return np.indices((choices,) * axes, dtype=np.int8).reshape(axes, choices**axes).T


def role_sets_of(rows: Rows, choices: Sequence[str]) -> RoleSets:
    """Return the mesh axes of each program axis, where rows [rows, mesh axes] are of indices into these choices."""
    number = np.arange(len(choices))
    return RoleSets(halves(rows), {axis: number == i for i, axis in enumerate(choices) if axis != IDLE})


def masks_of(rows: Rows, choices: Sequence[str]) -> Masks:
    """For each program axis, the set of mesh axes bound to it, as bits: [rows, 1]."""
    return role_sets_of(rows, choices).masks


def rejections(sizes: PaddedSizes, component: Component, batches: Ints, each: Ints | int = 1) -> list[Rejection]:
    """Return how many rows each need ruled out, with an example; a row stands for `each` assignments."""
    result = []
    for dim, reason, bad, ways in sizes.failures:
        row, column = np.unravel_index(int(bad.argmax()), bad.shape)
        size = float(batches[0, column]) if dim == "B" else component.dims[dim]
        example = {"ways": float(ways[row, column]), dim: size}
        result.append((component.name, reason, int((bad.any(axis=1) * each).sum()), example))
    return result
