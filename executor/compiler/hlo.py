"""Read the collectives and the copies of a compiled program from its HLO text, of the CPU or the TPU compiler.

Elements are counted in the convention of the prices (`strategies.kinds`): the gathered array for AllGather and
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
_FORWARDING = ("bitcast", "copy", "convert", "get-tuple-element", "reshape", "transpose")
_WRAPPERS = ("fusion", "call-start", "async-start")  # these opcodes run a computation as one operation


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of a collective: elements in the convention of the prices, HLO dtype, and bits per element."""

    elements: int
    dtype: str
    bits: int

    @property
    def nbytes(self) -> float:
        """The bytes of its elements."""
        return self.elements * self.bits / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A collective of a compiled program.

    `kind`: the name of `strategies.kinds`, such as `AllGather`. `name`: the HLO instruction. `op_name`: the JAX scope
    that it comes from; `user_op_name`: the scope of the first user of its result, if `op_name` is empty. `parts`: its
    operands. `groups`: its replica groups of device numbers; `pairs`: source and target devices of a permute. `runs`:
    runs per run of the program, None if a loop's trip count is unknown. `padding`: the elements that a ReduceScatter
    moves beyond its parts. `emitter`: how the TPU executes it, if the HLO names that, such as `SparseCore`.
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
        """The elements of one run, over all operands."""
        return sum(part.elements for part in self.parts)

    @property
    def nbytes(self) -> float:
        """The bytes of one run, over all operands."""
        return sum(part.nbytes for part in self.parts)

    def axes(self, sizes: Mapping[str, int]) -> tuple[str, ...] | None:
        """Return the axes of a mesh (`sizes`: `mesh.shape`) that it runs over; None if its groups match no axes."""
        return axes_of_pairs(self.pairs, sizes) if self.pairs else axes_of_groups(self.groups, sizes)


@dataclass(frozen=True, slots=True)
class Array:
    """An array that a program writes: the instruction, its opcode and JAX scope, the shape, and the runs."""

    name: str
    opcode: str
    op_name: str
    shape: Shape
    runs: int | None


def sent_share(kind: str, n: int) -> float:
    """Return the share of a collective's bytes V that each of n devices sends.

    Kinds that no plan prices, such as `Send`, are included, because a compiler may add them.

    >>> sent_share("AllReduce", 4), sent_share("Send", 2)
    (1.5, 1.0)
    """
    if kind in KINDS:
        return KINDS[kind].sent(n)
    return 1.0 if kind == "Send" else (n - 1) / n


def collectives(text: str) -> list[Collective]:
    """Return every collective of a compiled program once, from the text of `compiled.as_text()`.

    An asynchronous collective counts as its `-start` instruction. Collectives within groups of one device are left
    out.
    """
    module = parse_hlo(text)
    runs = module.runs()
    callers = {name: caller for caller, name in calls(module) if caller.opcode in _WRAPPERS}
    result = [
        _collective(module, computation, instruction, callers.get(computation.name), runs[computation.name])
        for computation in module.computations.values()
        if computation.name in runs
        for instruction in computation.instructions.values()
        if instruction.opcode.removesuffix("-start") in _KIND_OF and not _is_continuation(computation, instruction)
    ]
    return [c for c in result if c.pairs or not c.groups or len(c.groups[0]) > 1]


def _is_continuation(computation: Computation, instruction: Instruction) -> bool:
    """Return whether this is the middle or the end of a collective that the TPU spread over several fusions."""
    started = any(
        other.attribute(r'custom_call_target="(AsyncCollectiveStart)"') for other in computation.instructions.values()
    )
    return "async_collective_fusion_config" in instruction.attributes and not started


def _collective(
    module: Module, computation: Computation, instruction: Instruction, caller: Instruction | None, runs: int | None
) -> Collective:
    kind = _KIND_OF[instruction.opcode.removesuffix("-start")]
    groups = _groups(instruction, module.partitions)
    operands = _moved_shapes(computation, instruction)
    name = _op_name(instruction) or (caller and _op_name(caller)) or _reducer_name(module, instruction)
    collective = Collective(
        kind=kind,
        name=instruction.name,
        op_name=name,
        user_op_name="" if name else _user_name(computation, instruction),
        parts=tuple(_operand(kind, shape, len(groups[0]) if groups else 1) for shape in operands),
        groups=groups,
        pairs=_pairs(instruction),
        runs=runs,
        emitter=_emitter(instruction) or (_emitter(caller) if caller else None),
    )
    return (
        _as_reduce_scatter(computation, instruction, collective)
        if caller and caller.opcode == "fusion" and kind == "AllReduce"
        else collective
    )


def _op_name(instruction: Instruction) -> str:
    return instruction.attribute(r'op_name="([^"]*)"') or ""


def _reducer_name(module: Module, instruction: Instruction) -> str:
    """Return the scope that a reduction's computation kept; a rewrite may drop the one of the reduction itself."""
    reducer = module.computations.get(instruction.attribute(r"to_apply=%([\w.\-]+)") or "")
    return next((name for j in reducer.instructions.values() if (name := _op_name(j))), "") if reducer else ""


def _user_name(computation: Computation, instruction: Instruction) -> str:
    """Return the scope of the first user of a result, seen through nameless users that only forward the array."""
    users = [j for j in computation.instructions.values() if instruction.name in j.operands]
    onward = (j for j in users if j.opcode in _FORWARDING or j.opcode.endswith("-done"))
    return next((name for j in users if (name := _op_name(j))), "") or next(
        (name for j in onward if (name := _user_name(computation, j))), ""
    )


def _as_reduce_scatter(computation: Computation, instruction: Instruction, collective: Collective) -> Collective:
    """Turn an AllReduce of which its fusion keeps one slice into a ReduceScatter; the fusion may pad its operand."""
    if computation.origin(computation.root).opcode != "dynamic-slice":
        return collective
    sources = [computation.origin(o) for o in instruction.operands]
    unpadded = [computation.instructions[s.operands[0]] if s.opcode == "pad" else s for s in sources]
    parts = tuple(_operand("ReduceScatter", w.shapes[0], 1) for w in unpadded)
    return replace(
        collective,
        kind="ReduceScatter",
        parts=parts,
        padding=collective.elements - sum(part.elements for part in parts),
    )


def _moved_shapes(computation: Computation, instruction: Instruction) -> list[Shape]:
    shapes = [computation.instructions[o].shapes[0] for o in instruction.operands if computation.instructions[o].shapes]
    arrays = [shape for shape in shapes if shape.dtype != "token"]
    if instruction.opcode == "ragged-all-to-all":
        return arrays[:1]
    sizes = instruction.attribute(r"slice_sizes=\{\{([\d,]+)\}")
    if sizes and len(arrays) > 2:  # a permute of a part, in place: the operands are both arrays and two offsets
        return [Shape(arrays[0].dtype, tuple(map(int, sizes.split(","))))]
    return arrays


def _operand(kind: str, shape: Shape, n: int) -> Operand:
    times_devices = kind in KINDS and KINDS[kind].v_is_n_operands
    return Operand(shape.elements * (n if times_devices else 1), shape.dtype, shape.bits)


def _emitter(instruction: Instruction) -> str | None:
    if "DEVICE_TYPE_SPARSECORE" in instruction.attributes:
        return "SparseCore"
    if "async_collective_fusion_config" in instruction.attributes:
        return "AsyncCollectiveFusion"
    return instruction.attribute(r'"emitter":"(\w+)"')


def _pairs(instruction: Instruction) -> tuple[tuple[int, int], ...]:
    text = instruction.attribute(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
    return tuple((int(a), int(b)) for a, b in re.findall(r"\{(\d+),(\d+)\}", text or ""))


def _groups(instruction: Instruction, devices: int) -> Groups:
    text = instruction.attribute(GROUPS)
    return parse_groups(text, devices) if text else ()


def axes_of_groups(groups: Groups, sizes: Mapping[str, int]) -> tuple[str, ...] | None:
    """Return the mesh axes along which replica groups lie, in the mesh's order; None if they match no axes.

    Device numbers count the mesh row by row, so group (0, 2) of a 2 x 2 mesh lies along its first axis.

    >>> axes_of_groups(((0, 2), (1, 3)), {"X": 2, "Y": 2})
    ('X',)
    """
    if sorted(member for group in groups for member in group) != list(range(prod(sizes.values()))):
        return None
    axes = _varying_axes(groups, sizes)
    size = prod(sizes[axis] for axis in axes)
    rest = [len(set(_other_coordinates(group, axes, sizes))) for group in groups]
    return axes if all(len(group) == size for group in groups) and set(rest) == {1} else None


def axes_of_pairs(pairs: Sequence[tuple[int, int]], sizes: Mapping[str, int]) -> tuple[str, ...] | None:
    """Return the mesh axes along which the sources and targets of a permute differ; None if there are none."""
    return _varying_axes(pairs, sizes) or None


def _varying_axes(groups: Sequence[Sequence[int]], sizes: Mapping[str, int]) -> tuple[str, ...]:
    places = [np.array(np.unravel_index(list(group), tuple(sizes.values()))) for group in groups]
    return tuple(axis for n, axis in enumerate(sizes) if any(len(set(place[n].tolist())) > 1 for place in places))


def _other_coordinates(group: Sequence[int], axes: Sequence[str], sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    places = np.array(np.unravel_index(list(group), tuple(sizes.values())))
    fixed = [n for n, axis in enumerate(sizes) if axis not in axes]
    return [tuple(row) for row in places[fixed].T.tolist()]


def big_copies(text: str, nbytes: float) -> list[Array]:
    """Return the copies and transposes of at least `nbytes` bytes in HBM, such as a copy of a whole KV cache."""
    return [a for a in big_arrays(text, nbytes) if a.opcode in ("copy", "transpose", "format")]


def big_arrays(text: str, nbytes: float) -> list[Array]:
    """Return the arrays of at least `nbytes` bytes in HBM that instructions write, the largest first.

    Arguments and views (bitcasts, tuples) are left out. A fusion has the opcode of its root, so a fused copy is a
    `copy`; SparseCore's change of layout is a `format`.
    """
    module = parse_hlo(text)
    runs = module.runs()
    inlined = {name for caller, name in calls(module) if caller.opcode in _WRAPPERS}
    arrays = [
        Array(instruction.name, _root_opcode(module, instruction), _op_name(instruction), shape, runs[computation.name])
        for computation in module.computations.values()
        if computation.name in runs and computation.name not in inlined
        for instruction in computation.instructions.values()
        for shape in _result_shapes(module, instruction)
        if shape.space == 0 and shape.nbytes >= nbytes
    ]
    return sorted(arrays, key=lambda a: -a.shape.nbytes)


def _result_shapes(module: Module, instruction: Instruction) -> Iterator[Shape]:
    """Yield the shapes of the arrays that an instruction writes.

    A started call writes the root of its computation: its own type includes the result up to libtpu 0.0.42 but not in
    0.0.50. A started copy writes the first shape of its type.
    """
    if instruction.opcode in _FREE or instruction.opcode.endswith(("-done", "-update")):
        return
    if instruction.opcode in ("call-start", "async-start"):
        called = module.computations[instruction.called[0]]
        yield from called.instructions[called.root].shapes
    else:
        yield from instruction.shapes[:1] if instruction.opcode == "copy-start" else instruction.shapes


def _root_opcode(module: Module, instruction: Instruction) -> str:
    if "sparse-core-data-format" in instruction.name:
        return "format"
    if instruction.opcode not in _WRAPPERS:
        return instruction.opcode.removesuffix("-start")
    inner = module.computations[instruction.called[0]]
    root = inner.instructions[inner.root]
    while root.opcode in ("bitcast", "convert") and root.operands[0] in inner.instructions:
        root = inner.instructions[root.operands[0]]
    return root.opcode if root.opcode != "parameter" else "copy"
