"""A plan on several slices of one kind, joined by DCN: data parallel only, each slice with its own part of the batch.

Model-parallel collectives over DCN are not planned: what crosses it are token ids, in and out of every slice.
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
"""Of a token's id, int32."""


def batches_per_slice(batches: Sequence[int], num_slices: int) -> tuple[int, ...]:
    """Each batch cut over the slices. Raises `InputError` where it does not divide, or on no number of slices.

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
    """The plan of one slice, run by so many: throughput is of all of them, everything else of one."""
    rate = msgspec.structs.replace(plan.throughput, tokens_per_s=plan.throughput.tokens_per_s * num_slices)
    return msgspec.structs.replace(plan, num_slices=num_slices, throughput=rate)


def dcn_token_bytes_per_s(plan: Plan) -> float:
    """Bytes/s of token ids, in and out of all slices together: of every prompt or step, and of what it gives.

    A decode step takes a token of each sequence and gives one; a prefill takes the prompts and gives one of each.
    """
    given = plan.throughput.tokens_per_s / plan.tokens_per_sequence
    return TOKEN_BYTES * (plan.throughput.tokens_per_s + given)


def replicated(file: PlanFile, num_slices: int) -> PlanFile:
    """The plans of one slice, each run by so many, and what then crosses DCN."""
    plans = tuple(on_slices(plan, num_slices) for plan in file.plans)
    return msgspec.structs.replace(file, plans=plans, notes=(*file.notes, _dcn_note(plans[0])))


def _dcn_note(plan: Plan) -> str:
    says = (
        f"{plan.num_slices} slices, data parallel: each runs its part of the batch, and only token ids cross DCN, "
        f"{dcn_token_bytes_per_s(plan) / 1e6:.3g} MB/s in all"
    )
    name = plan.chip_name
    chip = load_chip(name) if name in chip_names() else None
    if chip is None or chip.dcn_bytes_per_s is None:
        return says
    return f"{says}, of {chip.dcn_bytes_per_s * plan.chips * plan.num_slices / 1e9:,.4g} GB/s that their hosts have"
