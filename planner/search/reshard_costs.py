"""The costs of reshards: for every boundary of a component, its entry and exit with every residual.

A reshard program's seconds grow linearly with the batch, where the terms of a collective add up (`Rates.additive`). So
it is priced at two batches, and what lies between them is interpolated; else it is priced at every batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np

from planner.search.component_rows import GIVE, READ, ComponentRows, unique_rows
from planner.search.residuals import CODES, States
from strategies.components import CheckedProgram, Component, entry_parts, exit_parts
from strategies.prices import Number
from strategies.readers.axis_sets import RoleSets, halves_of_pairs
from strategies.readers.cost import Speeds, Totals
from strategies.readers.fit import fit_part, scope_of
from strategies.readers.rates import Flags, Floats, Ints, Rates
from strategies.residual_program import GIVEN
from strategies.tables.dedup import price_shared

ROWS_AT_ONCE, ROWS_CACHED, CELLS_AT_ONCE = 1 << 20, 1 << 15, 1 << 22
TOGETHER = 1 << 15
"""The most rows of reshards that are priced at once for all ends that there may be, so that meshes of equally many axes
share the classes of their rows."""


@dataclass(frozen=True)
class ReshardProgram:
    """A reshard program by its ends, and the end of each boundary.

    Seconds, and those of hops and launches among them, at the batches that were priced [priced, ends, residuals]; `ok`
    [columns, ends, residuals]: whether it runs a batch.
    """

    step_s: Floats
    wait_s: Floats
    ok: Flags
    end: Ints


@dataclass(frozen=True)
class ReshardCosts:
    """Entry and exit of each boundary with each residual; `shares`: [columns, priced]."""

    programs: tuple[ReshardProgram, ...]
    shares: Floats

    def of(self, residual: int, column: int) -> tuple[Floats, Floats]:
        """Return seconds [boundaries] with one residual at one batch, without hops and launches, and with them."""
        early: Number = 0.0
        late: Number = 0.0
        for one in self.programs:
            step_s = self._between(one.step_s[..., residual], column)
            step_s = np.where(one.ok[column, :, residual], step_s, np.inf)
            late = late + step_s[one.end]
            early = early + (step_s - self._between(one.wait_s[..., residual], column))[one.end]
        return np.asarray(early), np.asarray(late)

    def least(self, joined: ComponentRows) -> Floats:
        """[residuals, columns]: the least seconds of one layer, body and reshard."""
        early, late = joined.least
        residuals, step = self.programs[0].ok.shape[2], max(1, CELLS_AT_ONCE // early.size)
        least = np.empty((residuals, early.shape[1]))
        for start in range(0, residuals, step):
            some = slice(start, start + step)
            step_s, wait_s, ok = self._at(some)
            for column in range(early.shape[1]):
                reshard_s = self._between(step_s, column)
                seconds = reshard_s + late[:, column, None]
                reshard_s -= self._between(wait_s, column)
                reshard_s += early[:, column, None]
                np.maximum(seconds, reshard_s, out=seconds)
                least[some, column] = np.where(ok[column], seconds, np.inf).min(axis=0)
        return least

    def boundaries(self, which: Ints) -> ReshardCosts:
        """Return the costs of these boundaries only."""
        return ReshardCosts(tuple(replace(one, end=one.end[which]) for one in self.programs), self.shares)

    def take(self, residuals: Ints) -> ReshardCosts:
        """With these residuals only."""
        programs = (
            ReshardProgram(one.step_s[..., residuals], one.wait_s[..., residuals], one.ok[..., residuals], one.end)
            for one in self.programs
        )
        return ReshardCosts(tuple(programs), self.shares)

    def _at(self, residuals: slice) -> tuple[Floats, Floats, Flags]:
        """Return the sums over all programs, [priced or columns, boundaries, residuals]."""
        every = [
            tuple(x[:, :, residuals].take(one.end, axis=1) for x in (one.step_s, one.wait_s, one.ok))
            for one in self.programs
        ]
        step_s, wait_s, ok = zip(*every, strict=True)
        return sum(step_s), sum(wait_s), np.logical_and.reduce(ok)

    def _between(self, values: Floats, column: int) -> Floats:
        """At one batch, of what was found at the priced ones."""
        shares = self.shares[column].tolist()
        return np.asarray(sum(share * value for share, value in zip(shares, values, strict=True) if share))


def price_reshards(
    every: Sequence[ComponentRows], states: States, phase: str, rates: Rates, fast: Speeds, batches: Ints
) -> tuple[list[ReshardCosts], int]:
    """Entry and exit of every boundary of each component with every residual; inf where a dim does not divide.

    Components share most of their reshard: a program is priced once, for all the ends that any of them has. Also
    returns how many prices that gives, over ends that some boundary has, residuals and batches.
    """
    wanted: dict[tuple[int, str], tuple[CheckedProgram, list[tuple[int, Ints]]]] = {}
    for number, joined in enumerate(every):
        for side, ends in (("entry", joined.reads), ("exit", joined.gives)):
            for part in (entry_parts if side == "entry" else exit_parts)(joined.component, phase):
                wanted.setdefault((id(part), side), (part, []))[1].append((number, ends))
    by_rows: list[list[ReshardProgram]] = [[] for _ in every]
    evaluations, at, shares = 0, *_priced_at(batches, rates)
    for (_, side), (part, users) in wanted.items():
        unique, inverse = _ends(np.concatenate([ends for _, ends in users]), side, phase, len(states.cuts))
        step = max(1, ROWS_AT_ONCE // len(unique))
        chunks = [states.cuts[start : start + step] for start in range(0, len(states.cuts), step)]
        priced = [_reshards(part, every[0].component, unique, cuts, side, rates, fast, batches, at) for cuts in chunks]
        step_s, wait_s, ok = (np.concatenate(one, axis=2) for one in zip(*priced, strict=True))
        evaluations += len(np.unique(inverse)) * ok.shape[0] * ok.shape[2]
        starts = np.cumsum([0, *(len(ends) for _, ends in users)])
        for (number, _), start, stop in zip(users, starts[:-1], starts[1:], strict=True):
            by_rows[number].append(ReshardProgram(step_s, wait_s, ok, inverse[start:stop]))
    return [ReshardCosts(tuple(programs), shares) for programs in by_rows], evaluations


def reshard_rows(every: Sequence[ComponentRows], states: States) -> int:
    """Return how many pairs of a boundary and a residual there are, over all components."""
    return sum(len(j.reads) + len(j.gives) for j in every) * len(states.cuts)


def _ends(wanted: Ints, side: str, phase: str, residuals: int) -> tuple[Ints, Ints]:
    """Return the ends to price, and the places of the wanted ones: all that may be, if these are not too many."""
    codes = CODES if side == "entry" else GIVEN
    possible = [i for i, code in enumerate(codes) if code != "T" or phase == "prefill"]
    axes = wanted.shape[1]
    if len(possible) ** axes * residuals > TOGETHER:
        return unique_rows(wanted)
    place = np.searchsorted(possible, wanted)
    return _all_ends(tuple(possible), axes), place @ (len(possible) ** np.arange(axes - 1, -1, -1))


@lru_cache(maxsize=32)
def _all_ends(codes: tuple[int, ...], axes: int) -> Ints:
    return np.array(list(product(codes, repeat=axes)), dtype=np.int64).reshape(len(codes) ** axes, axes)


def _priced_at(batches: Ints, rates: Rates) -> tuple[Ints, Floats]:
    """The batches to price reshard at [1, priced], and the share that each has in those asked for [columns, priced]."""
    if not rates.additive or batches.shape[1] < 3:
        return batches, np.eye(batches.shape[1])
    low, high = int(batches.min()), int(batches.max())
    share = (batches[0] - low) / max(1, high - low)
    return np.array([[low, high]], dtype=np.int64), np.column_stack([1 - share, share])


def _reshards(
    part: CheckedProgram,
    component: Component,
    ends: Ints,
    cuts: Ints,
    side: str,
    rates: Rates,
    fast: Speeds,
    batches: Ints,
    at: Ints,
) -> tuple[Floats, Floats, Flags]:
    """`step_s`, `wait_s` and `ok` of a reshard program, as in `ReshardProgram`; of the component it needs D and T."""
    role_sets_of = _cached_role_sets if len(ends) * len(cuts) <= ROWS_CACHED else _cached_role_sets.__wrapped__
    role_sets = role_sets_of(part, (ends.tobytes(), ends.shape), (cuts.tobytes(), cuts.shape), side)
    padded_sizes, total = fit_part(part, component, rates, role_sets.masks, batches), Totals()
    sizes = {**padded_sizes.sizes, "B": at}  # never padded by reshard
    price_shared(scope_of(part, sizes, role_sets.masks, rates, fast), part.needs, role_sets, fast, total)
    shape = (len(ends), len(cuts), -1)
    step_s = np.broadcast_to(total.step_s, (role_sets.rows, at.shape[1])).T.reshape(-1, *shape[:2])
    wait_s = np.broadcast_to(total.wait_s, (role_sets.rows, at.shape[1])).T.reshape(-1, *shape[:2])
    runs = np.isfinite(step_s)
    if not runs.all():
        step_s, wait_s = np.where(runs, step_s, 0.0), np.where(runs, wait_s, 0.0)
    return step_s, wait_s, padded_sizes.ok.T.reshape(-1, *shape[:2]) & runs.all(axis=0)


@lru_cache(maxsize=128)
def _cached_role_sets(
    part: CheckedProgram, ends: tuple[bytes, tuple[int, ...]], cuts: tuple[bytes, tuple[int, ...]], side: str
) -> RoleSets:
    """The `reshard_role_sets` of arrays as bytes and shape: meshes of equally many axes ask for the same ones."""
    first, second = (np.frombuffer(data, dtype=np.int64).reshape(shape) for data, shape in (ends, cuts))
    return reshard_role_sets(part, first, second, side)


def reshard_role_sets(part: CheckedProgram, ends: Ints, cuts: Ints, side: str) -> RoleSets:
    """Return each mesh axis's role for every end of a body with every residual, [ends * residuals]: a pair of codes."""
    one_position = "T" not in part.program.input.names and side == "entry"
    residual = np.where(cuts == READ["T"], READ["-"], cuts) if one_position else cuts
    members = {role.axis: _pairs_of(part, role.name, side).reshape(-1) for role in part.program.roles}
    return RoleSets(halves_of_pairs(ends, residual, len(GIVEN)), members)


def _pairs_of(part: CheckedProgram, name: str, side: str) -> Flags:
    """[the body's end, the residual]: whether that pair of codes plays the role of that name."""
    pairs = np.zeros((len(GIVEN), len(GIVEN)), dtype=np.bool_)
    if part.program.name == "last":
        pairs[:, READ[name[0]]] = True
    elif side == "entry":
        pairs[READ[name[1]], READ[name[0]]] = True
    else:
        pairs[GIVE[name[0]], READ[name[1]]] = True
    return pairs
