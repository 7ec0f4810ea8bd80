"""Price the reshards: for every boundary of a component, its entry and exit with every residual.

The seconds of a reshard program grow linearly with the batch where the terms of a collective add up
(`Rates.additive`). It is then priced at the smallest and the largest batch, and interpolated between them; otherwise
it is priced at every batch.
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
ALL_ENDS_LIMIT = 1 << 15
"""Up to so many rows of a reshard program are priced at once, and then for all possible ends, so that meshes with
equally many axes share the arrays that tell their rows apart."""


@dataclass(frozen=True)
class ReshardProgram:
    """The prices of one reshard program by its ends, and the number of the end of each boundary.

    `step_s` and, of it, `wait_s` of hops and launches are seconds [priced, ends, residuals] at the priced batches. `ok`
    [columns, ends, residuals] is true where the program can run a batch. `end` [boundaries] numbers the ends.
    """

    step_s: Floats
    wait_s: Floats
    ok: Flags
    end: Ints


@dataclass(frozen=True)
class ReshardCosts:
    """The entry and exit programs of a component's boundaries with each residual.

    `shares` [columns, priced] are the weights with which the priced batches are interpolated.
    """

    programs: tuple[ReshardProgram, ...]
    shares: Floats

    def seconds(self, residual: int, column: int) -> tuple[Floats, Floats]:
        """Return `hops_hidden_s` and `reads_full_s` [boundaries] with one residual at one batch.

        The first leaves out hops and launches. Both are infinite where a boundary cannot meet the residual.
        """
        hops_hidden_s: Number = 0.0
        reads_full_s: Number = 0.0
        for program in self.programs:
            step_s = self._interpolate(program.step_s[..., residual], column)
            step_s = np.where(program.ok[column, :, residual], step_s, np.inf)
            reads_full_s = reads_full_s + step_s[program.end]
            hops_hidden_s = (
                hops_hidden_s + (step_s - self._interpolate(program.wait_s[..., residual], column))[program.end]
            )
        return np.asarray(hops_hidden_s), np.asarray(reads_full_s)

    def least_seconds(self, component_rows: ComponentRows) -> Floats:
        """Return the least seconds of one layer, body and reshards together [residuals, columns]."""
        body_hops_hidden_s, body_reads_full_s = component_rows.least_seconds
        residuals, step = self.programs[0].ok.shape[2], max(1, CELLS_AT_ONCE // body_hops_hidden_s.size)
        result = np.empty((residuals, body_hops_hidden_s.shape[1]))
        for start in range(0, residuals, step):
            chunk = slice(start, start + step)
            step_s, wait_s, ok = self._on_boundaries(chunk)
            for column in range(body_hops_hidden_s.shape[1]):
                total_s = self._interpolate(step_s, column)
                seconds = total_s + body_reads_full_s[:, column, None]
                total_s -= self._interpolate(wait_s, column)
                total_s += body_hops_hidden_s[:, column, None]
                np.maximum(seconds, total_s, out=seconds)
                result[chunk, column] = np.where(ok[column], seconds, np.inf).min(axis=0)
        return result

    def for_boundaries(self, boundaries: Ints) -> ReshardCosts:
        """Return the costs of these boundaries only."""
        return ReshardCosts(
            tuple(replace(program, end=program.end[boundaries]) for program in self.programs), self.shares
        )

    def take(self, residuals: Ints) -> ReshardCosts:
        """Return the costs with these residuals only."""
        programs = (
            ReshardProgram(
                program.step_s[..., residuals], program.wait_s[..., residuals], program.ok[..., residuals], program.end
            )
            for program in self.programs
        )
        return ReshardCosts(tuple(programs), self.shares)

    def _on_boundaries(self, residuals: slice) -> tuple[Floats, Floats, Flags]:
        """Return `step_s`, `wait_s` and `ok` of all programs, [priced or columns, boundaries, residuals]."""
        arrays = [
            tuple(x[:, :, residuals].take(program.end, axis=1) for x in (program.step_s, program.wait_s, program.ok))
            for program in self.programs
        ]
        step_s, wait_s, ok = zip(*arrays, strict=True)
        return sum(step_s), sum(wait_s), np.logical_and.reduce(ok)

    def _interpolate(self, values: Floats, column: int) -> Floats:
        """Return the value at one batch, interpolated between the priced ones."""
        shares = self.shares[column].tolist()
        return np.asarray(sum(share * value for share, value in zip(shares, values, strict=True) if share))


def price_reshards(
    components: Sequence[ComponentRows], states: States, phase: str, rates: Rates, fast: Speeds, batches: Ints
) -> tuple[list[ReshardCosts], int]:
    """Price entry and exit of every boundary of each component with every residual.

    Seconds are infinite where a dim does not divide. Components share most of their reshards, so a program is priced
    once for all the ends that any component has. `batches` has shape [1, columns]. Also returns the number of prices:
    ends that some boundary has, times residuals and batches.
    """
    wanted: dict[tuple[int, str], tuple[CheckedProgram, list[tuple[int, Ints]]]] = {}
    for number, component_rows in enumerate(components):
        for side, ends in (("entry", component_rows.reads), ("exit", component_rows.gives)):
            for part in (entry_parts if side == "entry" else exit_parts)(component_rows.component, phase):
                wanted.setdefault((id(part), side), (part, []))[1].append((number, ends))
    programs: list[list[ReshardProgram]] = [[] for _ in components]
    evaluations, priced_batches, shares = 0, *_priced_at(batches, rates)
    for (_, side), (part, users) in wanted.items():
        unique, inverse = _ends(np.concatenate([ends for _, ends in users]), side, phase, len(states.cuts))
        step = max(1, ROWS_AT_ONCE // len(unique))
        chunks = [states.cuts[start : start + step] for start in range(0, len(states.cuts), step)]
        priced = [
            _price_program(part, components[0].component, unique, cuts, side, rates, fast, batches, priced_batches)
            for cuts in chunks
        ]
        step_s, wait_s, ok = (np.concatenate(arrays, axis=2) for arrays in zip(*priced, strict=True))
        evaluations += len(np.unique(inverse)) * ok.shape[0] * ok.shape[2]
        starts = np.cumsum([0, *(len(ends) for _, ends in users)])
        for (number, _), start, stop in zip(users, starts[:-1], starts[1:], strict=True):
            programs[number].append(ReshardProgram(step_s, wait_s, ok, inverse[start:stop]))
    return [ReshardCosts(tuple(component_programs), shares) for component_programs in programs], evaluations


def reshard_rows(components: Sequence[ComponentRows], states: States) -> int:
    """Return the number of pairs of an end and a residual, over all components."""
    return sum(len(component_rows.reads) + len(component_rows.gives) for component_rows in components) * len(
        states.cuts
    )


def _ends(wanted: Ints, side: str, phase: str, residuals: int) -> tuple[Ints, Ints]:
    """Return the ends to price, all possible ones if those are few, and the number of each wanted end among them."""
    codes = CODES if side == "entry" else GIVEN
    possible = [i for i, code in enumerate(codes) if code != "T" or phase == "prefill"]
    axes = wanted.shape[1]
    if len(possible) ** axes * residuals > ALL_ENDS_LIMIT:
        return unique_rows(wanted)
    place = np.searchsorted(possible, wanted)
    return _all_ends(tuple(possible), axes), place @ (len(possible) ** np.arange(axes - 1, -1, -1))


@lru_cache(maxsize=32)
def _all_ends(codes: tuple[int, ...], axes: int) -> Ints:
    """Return every combination of these codes on that many axes, [combinations, axes]."""
    return np.array(list(product(codes, repeat=axes)), dtype=np.int64).reshape(len(codes) ** axes, axes)


def _priced_at(batches: Ints, rates: Rates) -> tuple[Ints, Floats]:
    """Return the batches to price [1, priced], and the weights that interpolate the others [columns, priced]."""
    if not rates.additive or batches.shape[1] < 3:
        return batches, np.eye(batches.shape[1])
    low, high = int(batches.min()), int(batches.max())
    share = (batches[0] - low) / max(1, high - low)
    return np.array([[low, high]], dtype=np.int64), np.column_stack([1 - share, share])


def _price_program(
    part: CheckedProgram,
    component: Component,
    ends: Ints,
    cuts: Ints,
    side: str,
    rates: Rates,
    fast: Speeds,
    batches: Ints,
    priced_batches: Ints,
) -> tuple[Floats, Floats, Flags]:
    """Return `step_s`, `wait_s` and `ok` of a reshard program, as in `ReshardProgram`.

    Of the component only the dims D and T are used.
    """
    role_sets_of = _cached_role_sets if len(ends) * len(cuts) <= ROWS_CACHED else _cached_role_sets.__wrapped__
    role_sets = role_sets_of(part, (ends.tobytes(), ends.shape), (cuts.tobytes(), cuts.shape), side)
    fit, total = fit_part(part, component, rates, role_sets.masks, batches), Totals()
    sizes = {**fit.sizes, "B": priced_batches}  # a reshard never pads the batch
    price_shared(scope_of(part, sizes, role_sets.masks, rates, fast), part.needs, role_sets, fast, total)
    shape = (len(ends), len(cuts), -1)
    step_s = np.broadcast_to(total.step_s, (role_sets.rows, priced_batches.shape[1])).T.reshape(-1, *shape[:2])
    wait_s = np.broadcast_to(total.wait_s, (role_sets.rows, priced_batches.shape[1])).T.reshape(-1, *shape[:2])
    runs = np.isfinite(step_s)
    if not runs.all():
        step_s, wait_s = np.where(runs, step_s, 0.0), np.where(runs, wait_s, 0.0)
    return step_s, wait_s, fit.ok.T.reshape(-1, *shape[:2]) & runs.all(axis=0)


@lru_cache(maxsize=128)
def _cached_role_sets(
    part: CheckedProgram, ends: tuple[bytes, tuple[int, ...]], cuts: tuple[bytes, tuple[int, ...]], side: str
) -> RoleSets:
    """Return `reshard_role_sets` of arrays given as bytes and shape, which meshes of equally many axes share."""
    first, second = (np.frombuffer(data, dtype=np.int64).reshape(shape) for data, shape in (ends, cuts))
    return reshard_role_sets(part, first, second, side)


def reshard_role_sets(part: CheckedProgram, ends: Ints, cuts: Ints, side: str) -> RoleSets:
    """Return the role of each mesh axis for every end of a body with every residual, [ends * residuals].

    A role of a reshard program is named by a pair of codes: the dim that the axis cuts in the body, and in the
    residual.
    """
    one_position = "T" not in part.program.input.names and side == "entry"
    residual = np.where(cuts == READ["T"], READ["-"], cuts) if one_position else cuts
    members = {role.axis: _pairs_of(part, role.name, side).reshape(-1) for role in part.program.roles}
    return RoleSets(halves_of_pairs(ends, residual, len(GIVEN)), members)


def _pairs_of(part: CheckedProgram, name: str, side: str) -> Flags:
    """Mark [end of the body, residual] the pairs of codes that have the role of that name."""
    pairs = np.zeros((len(GIVEN), len(GIVEN)), dtype=np.bool_)
    if part.program.name == "last":
        pairs[:, READ[name[0]]] = True
    elif side == "entry":
        pairs[READ[name[1]], READ[name[0]]] = True
    else:
        pairs[GIVE[name[0]], READ[name[1]]] = True
    return pairs
