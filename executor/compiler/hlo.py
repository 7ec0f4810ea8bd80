"""The collectives and copies of a compiled program, read from its HLO, of CPU or TPU.

Elements are in the convention of the prices (`strategies.kinds`): the gathered array for AllGather and
ReduceScatter, the local array for AllReduce, the local array times the group size for AllToAll, the local shard for
CollectivePermute. Replica groups number the devices in the order of the mesh, row by row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from executor.compiler.hlo_text import (
    GROUPS,
    Computation,
    Groups,
    Instruction,
    Module,
    Shape,
    calls,
    parse_groups,
    parse_hlo,
)
from strategies.kinds import KINDS

_UNPRICED = {"CollectiveBroadcast": "collective-broadcast", "Send": "send"}  # kinds that no primitive asks for
_KIND_OF = {opcode: name for name, kind in KINDS.items() for opcode in kind.opcodes} | {
    opcode: name for name, opcode in _UNPRICED.items()
}
_FREE = ("parameter", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "constant", "call", "after-all")
_HANDED_ON = ("bitcast", "copy", "convert", "get-tuple-element", "reshape", "transpose")
_WRAPPERS = ("fusion", "call-start", "async-start")  # they run a computation as one operation


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of a collective: elements in the convention of the prices, and how it travels."""

    elements: int
    dtype: str
    bits: int

    @property
    def nbytes(self) -> float:
        """Bytes of the elements."""
        return self.elements * self.bits / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A collective of a compiled program.

    `runs` is None where a loop's trip count is unknown. `padding`: the elements that a ReduceScatter moves beyond its
    parts. `user_op_name`: of what first uses the result, where there is no `op_name`. `emitter` says how the TPU does
    it, where noted.
    """

    kind: str
    name: str
    op_name: str
    user_op_name: str = ""
    parts: tuple[Operand, ...]
    groups: Groups
    pairs: tuple[tuple[int, int], ...] = ()
    runs: int | None = 1
    padding: int = 0
    emitter: str | None = None

    @property
    def elements(self) -> int:
        """Elements of one run."""
        return sum(part.elements for part in self.parts)

    @property
    def nbytes(self) -> float:
        """Bytes of one run."""
        return sum(part.nbytes for part in self.parts)

    def axes(self, sizes: Mapping[str, int]) -> tuple[str, ...] | None:
        """The mesh axes (of `mesh.shape`) that it runs over; None where its groups are no axes."""
        return axes_of_pairs(self.pairs, sizes) if self.pairs else axes_of_groups(self.groups, sizes)


@dataclass(frozen=True, slots=True)
class Array:
    """An array that a program makes: where, of what shape, how often."""

    name: str
    opcode: str
    op_name: str
    shape: Shape
    runs: int | None


def sent_share(kind: str, n: int) -> float:
    """The share of V that each of n devices sends, of a kind that is priced or one that is only found.

    >>> sent_share("AllReduce", 4), sent_share("Send", 2)
    (1.5, 1.0)
    """
    if kind in KINDS:
        return KINDS[kind].sent(n)
    return 1.0 if kind == "Send" else (n - 1) / n


def collectives(text: str) -> list[Collective]:
    """Every collective of a compiled program, each once: of an asynchronous one, its start."""
    module = parse_hlo(text)
    runs = module.runs()
    callers = {name: caller for caller, name in calls(module) if caller.opcode in _WRAPPERS}
    compiled = [
        _collective(module, at, i, callers.get(at.name), runs[at.name])
        for at in module.computations.values()
        if at.name in runs
        for i in at.instructions.values()
        if i.opcode.removesuffix("-start") in _KIND_OF and not _again(at, i)
    ]
    return [c for c in compiled if c.pairs or not c.groups or len(c.groups[0]) > 1]


def _again(at: Computation, i: Instruction) -> bool:
    """Return whether this is the middle or the end of a collective that the TPU spread over several fusions."""
    started = any(j.attribute(r'custom_call_target="(AsyncCollectiveStart)"') for j in at.instructions.values())
    return "async_collective_fusion_config" in i.attributes and not started


def _collective(
    module: Module, at: Computation, i: Instruction, caller: Instruction | None, runs: int | None
) -> Collective:
    kind = _KIND_OF[i.opcode.removesuffix("-start")]
    groups = _groups(i, module.partitions)
    operands = _moved(at, i)
    name = _op_name(i) or (caller and _op_name(caller)) or _reducer_name(module, i)
    collective = Collective(
        kind=kind,
        name=i.name,
        op_name=name,
        user_op_name="" if name else _user_name(at, i),
        parts=tuple(_part(kind, shape, len(groups[0]) if groups else 1) for shape in operands),
        groups=groups,
        pairs=_pairs(i),
        runs=runs,
        emitter=_emitter(i) or (_emitter(caller) if caller else None),
    )
    return _scattered(at, i, collective) if caller and caller.opcode == "fusion" and kind == "AllReduce" else collective


def _op_name(i: Instruction) -> str:
    return i.attribute(r'op_name="([^"]*)"') or ""


def _reducer_name(module: Module, i: Instruction) -> str:
    """The name that a reduction's computation kept, where a rewrite lost the reduction's own."""
    reducer = module.computations.get(i.attribute(r"to_apply=%([\w.\-]+)") or "")
    return next((name for j in reducer.instructions.values() if (name := _op_name(j))), "") if reducer else ""


def _user_name(at: Computation, i: Instruction) -> str:
    """The name of what first uses a result, or, where that is nameless and only hands it on, of what uses that."""
    users = [j for j in at.instructions.values() if i.name in j.operands]
    onward = (j for j in users if j.opcode in _HANDED_ON or j.opcode.endswith("-done"))
    return next((name for j in users if (name := _op_name(j))), "") or next(
        (name for j in onward if (name := _user_name(at, j))), ""
    )


def _scattered(at: Computation, i: Instruction, collective: Collective) -> Collective:
    """An AllReduce of which a fusion keeps one slice runs as a ReduceScatter; the fusion may pad its operand."""
    if at.origin(at.root).opcode != "dynamic-slice":
        return collective
    shapes = [at.origin(o) for o in i.operands]
    whole = [at.instructions[s.operands[0]] if s.opcode == "pad" else s for s in shapes]
    parts = tuple(_part("ReduceScatter", w.shapes[0], 1) for w in whole)
    return replace(
        collective,
        kind="ReduceScatter",
        parts=parts,
        padding=collective.elements - sum(part.elements for part in parts),
    )


def _moved(at: Computation, i: Instruction) -> list[Shape]:
    shapes = [at.instructions[o].shapes[0] for o in i.operands if at.instructions[o].shapes]
    arrays = [shape for shape in shapes if shape.dtype != "token"]
    if i.opcode == "ragged-all-to-all":
        return arrays[:1]
    sizes = i.attribute(r"slice_sizes=\{\{([\d,]+)\}")
    if sizes and len(arrays) > 2:  # a permute of a part, in place: the operands are both arrays and two offsets
        return [Shape(arrays[0].dtype, tuple(map(int, sizes.split(","))))]
    return arrays


def _part(kind: str, shape: Shape, n: int) -> Operand:
    whole = kind in KINDS and KINDS[kind].v_is_n_operands
    return Operand(shape.elements * (n if whole else 1), shape.dtype, shape.bits)


def _emitter(i: Instruction) -> str | None:
    if "DEVICE_TYPE_SPARSECORE" in i.attributes:
        return "SparseCore"
    if "async_collective_fusion_config" in i.attributes:
        return "AsyncCollectiveFusion"
    return i.attribute(r'"emitter":"(\w+)"')


def _pairs(i: Instruction) -> tuple[tuple[int, int], ...]:
    text = i.attribute(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
    return tuple((int(a), int(b)) for a, b in re.findall(r"\{(\d+),(\d+)\}", text or ""))


def _groups(i: Instruction, devices: int) -> Groups:
    text = i.attribute(GROUPS)
    return parse_groups(text, devices) if text else ()


def axes_of_groups(groups: Groups, sizes: Mapping[str, int]) -> tuple[str, ...] | None:
    """The mesh axes along which the groups lie, in the mesh's order; None where they are no axes.

    >>> axes_of_groups(((0, 2), (1, 3)), {"X": 2, "Y": 2})
    ('X',)
    """
    if sorted(member for group in groups for member in group) != list(range(prod(sizes.values()))):
        return None
    axes = _varying(groups, sizes)
    size = prod(sizes[axis] for axis in axes)
    rest = [len(set(_fixed(group, axes, sizes))) for group in groups]
    return axes if all(len(group) == size for group in groups) and set(rest) == {1} else None


def axes_of_pairs(pairs: Sequence[tuple[int, int]], sizes: Mapping[str, int]) -> tuple[str, ...] | None:
    """The mesh axes along which the sources and targets of a permute differ."""
    return _varying(pairs, sizes) or None


def _varying(groups: Sequence[Sequence[int]], sizes: Mapping[str, int]) -> tuple[str, ...]:
    places = [np.array(np.unravel_index(list(group), tuple(sizes.values()))) for group in groups]
    return tuple(axis for n, axis in enumerate(sizes) if any(len(set(at[n].tolist())) > 1 for at in places))


def _fixed(group: Sequence[int], axes: Sequence[str], sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    places = np.array(np.unravel_index(list(group), tuple(sizes.values())))
    kept = [n for n, axis in enumerate(sizes) if axis not in axes]
    return [tuple(row) for row in places[kept].T.tolist()]


def big_copies(text: str, nbytes: float) -> list[Array]:
    """Copies and transposes whose result is in HBM and has at least so many bytes: a cache copied whole, say."""
    return [a for a in big_arrays(text, nbytes) if a.opcode in ("copy", "transpose", "format")]


def big_arrays(text: str, nbytes: float) -> list[Array]:
    """Arrays in HBM of at least so many bytes that instructions make; arguments and mere views are none.

    A fusion counts as what its root is, so a fused copy is a `copy`; SparseCore's change of layout is a `format`.
    """
    module = parse_hlo(text)
    runs = module.runs()
    inner = {name for caller, name in calls(module) if caller.opcode in _WRAPPERS}
    arrays = [
        Array(i.name, _root_opcode(module, i), _op_name(i), shape, runs[at.name])
        for at in module.computations.values()
        if at.name in runs and at.name not in inner
        for i in at.instructions.values()
        for shape in _made(module, i)
        if shape.space == 0 and shape.nbytes >= nbytes
    ]
    return sorted(arrays, key=lambda a: -a.shape.nbytes)


def _made(module: Module, i: Instruction) -> Iterator[Shape]:
    """Yield the arrays that an instruction makes in memory; for a started call, its callee's.

    The type of a started call holds its result up to libtpu 0.0.42, and none in 0.0.50.
    """
    if i.opcode in _FREE or i.opcode.endswith(("-done", "-update")):
        return
    if i.opcode in ("call-start", "async-start"):
        called = module.computations[i.called[0]]
        yield from called.instructions[called.root].shapes
    else:
        yield from i.shapes[:1] if i.opcode == "copy-start" else i.shapes


def _root_opcode(module: Module, i: Instruction) -> str:
    if "sparse-core-data-format" in i.name:
        return "format"
    if i.opcode not in _WRAPPERS:
        return i.opcode.removesuffix("-start")
    inner = module.computations[i.called[0]]
    root = inner.instructions[inner.root]
    while root.opcode in ("bitcast", "convert") and root.operands[0] in inner.instructions:
        root = inner.instructions[root.operands[0]]
    return root.opcode if root.opcode != "parameter" else "copy"
