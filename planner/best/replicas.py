"""Run a plan on several slices of one kind, connected by DCN: data parallel only, each slice with its own batch.

Model-parallel collectives over DCN are not planned: only token ids cross it, in and out of every slice.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mesh.chips import chip_names, load_chip
from mesh.errors import InputError
from planner.plan.plan import Plan
from planner.plan.planfile import PlanFile
from planner.query.query import MOST_SLICES

TOKEN_BYTES = 4
"""Bytes of a token's id, int32."""


def batches_per_slice(batches: Sequence[int], num_slices: int) -> tuple[int, ...]:
    """Return each batch cut over the slices.

    Raises `InputError` where a batch does not divide, or on a number of slices out of range.

    >>> batches_per_slice((64, 256), 2)
    (32, 128)
    """
    if not 1 <= num_slices <= MOST_SLICES:
        raise InputError(f"num_slices {num_slices}: expected a whole number from 1 to {MOST_SLICES}")
    for batch in batches:
        if batch % num_slices:
            raise InputError(
                f"batch {batch} cannot be cut over {num_slices} slices; expected a multiple of {num_slices}"
            )
    return tuple(batch // num_slices for batch in batches)


def on_slices(plan: Plan, num_slices: int) -> Plan:
    """Return the plan of one slice, run by `num_slices`: throughput is of all, everything else of one."""
    rate = msgspec.structs.replace(plan.throughput, tokens_per_s=plan.throughput.tokens_per_s * num_slices)
    return msgspec.structs.replace(plan, num_slices=num_slices, throughput=rate)


def dcn_token_bytes_per_s(plan: Plan) -> float:
    """Return the bytes/s of token ids, in and out of all slices.

    A decode step takes a token of each sequence and returns one; a prefill takes the prompts and returns one of each.
    """
    produced = plan.throughput.tokens_per_s / plan.tokens_per_sequence
    return TOKEN_BYTES * (plan.throughput.tokens_per_s + produced)


def replicated(file: PlanFile, num_slices: int) -> PlanFile:
    """Return the plans of one slice, each run by `num_slices`, with a note on the traffic over DCN."""
    plans = tuple(on_slices(plan, num_slices) for plan in file.plans)
    return msgspec.structs.replace(file, plans=plans, notes=(*file.notes, _dcn_note(plans[0])))


def _dcn_note(plan: Plan) -> str:
    """Return a note on the token ids that cross DCN, beside the hosts' bandwidth where it is known."""
    note = (
        f"{plan.num_slices} slices, data parallel: each runs its part of the batch, and only token ids cross DCN, "
        f"{dcn_token_bytes_per_s(plan) / 1e6:.3g} MB/s in all"
    )
    name = plan.chip_name
    chip = load_chip(name) if name in chip_names() else None
    if chip is None or chip.dcn_bytes_per_s is None:
        return note
    return f"{note}, of {chip.dcn_bytes_per_s * plan.chips * plan.num_slices / 1e9:,.4g} GB/s that their hosts have"
