"""The kinds of collectives, one record each: formula, bytes sent, and names in compiled programs.

V is what a kind's formula is written for: bytes of the gathered array for AllGather and ReduceScatter, of the local
array for AllReduce, of the local array times the group's n devices for AllToAll, of the local shard for
CollectivePermute. Primitives ask for kinds (`strategies.prices.Comm`); `mesh.collectives` derives the formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mesh.collectives import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A collective over n devices.

    `s_per_byte`: seconds per byte of V, one torus axis after the other (True) or all at once. `hops`, `phases`: how
    many hops it waits for, and how many operations of the machine it takes, each with a launch. `sent`: the share of V
    that each device sends. `v_is_n_operands`: whether V is n times what a device gives. `whole_as`: the kind as which
    it runs over all devices of a slice whose compiler reduces whole (`Slice.reduces_whole`). `opcodes`: in HLO.
    """

    s_per_byte: Callable[[Group, bool], float]
    hops: Callable[[Group], int]
    phases: Callable[[Group], int]
    sent: Callable[[int], float]
    v_is_n_operands: bool
    whole_as: str | None
    opcodes: tuple[str, ...]


def _gather_s_per_byte(group: Group, in_turn: bool) -> float:
    return group.all_gather_in_turn_s_per_byte if in_turn else group.all_gather_s_per_byte


def _once(group: Group) -> int:
    return min(group.phases, 1)


KINDS: dict[str, Kind] = {
    "AllGather": Kind(
        s_per_byte=_gather_s_per_byte,
        hops=lambda group: group.hops,
        phases=lambda group: group.phases,
        sent=lambda n: (n - 1) / n,
        v_is_n_operands=True,
        whole_as=None,
        opcodes=("all-gather",),
    ),
    "ReduceScatter": Kind(
        s_per_byte=_gather_s_per_byte,
        hops=lambda group: group.hops,
        phases=lambda group: group.phases,
        sent=lambda n: (n - 1) / n,
        v_is_n_operands=False,
        whole_as="AllReduce",
        opcodes=("reduce-scatter",),
    ),
    "AllReduce": Kind(
        s_per_byte=lambda group, in_turn: 2 * _gather_s_per_byte(group, in_turn),
        hops=lambda group: 2 * group.hops,
        phases=lambda group: 2 * group.phases,
        sent=lambda n: 2 * (n - 1) / n,
        v_is_n_operands=False,
        whole_as=None,
        opcodes=("all-reduce",),
    ),
    "AllToAll": Kind(
        s_per_byte=lambda group, _: group.all_to_all_s_per_byte,
        hops=lambda group: group.hops,
        phases=_once,
        sent=lambda n: (n - 1) / n**2,
        v_is_n_operands=True,
        whole_as=None,
        opcodes=("all-to-all", "ragged-all-to-all"),
    ),
    "CollectivePermute": Kind(
        s_per_byte=lambda group, _: group.permute_s_per_byte,
        hops=lambda group: group.permute_hops,
        phases=_once,
        sent=lambda _: 1.0,
        v_is_n_operands=False,
        whole_as=None,
        opcodes=("collective-permute",),
    ),
}
