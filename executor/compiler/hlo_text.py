"""Compiled HLO as text, read into computations of instructions, and how often each computation runs.

Only what `as_text()` prints is read, so it works for every backend. Loops: XLA notes a trip count on CPU; on TPU it is
worked out from the condition (`counter < bound`), the counter's start and its step. Replica groups are the devices that
communicate in a collective, in whichever of its forms HLO writes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, prod

import numpy as np

Groups = tuple[tuple[int, ...], ...]

_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+)\s*\(.*\{\s*$")
_SHAPE = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,<=]*)\](\{[^}]*\})?")
_CALLS = re.compile(
    r"\b(?:calls|to_apply|body|condition|branch_computations|called_computations|true_computation|false_computation)="
    r"(\{[^}]*\}|%[\w.\-]+)"
)
_BITS = {"pred": 8, "token": 0, "opaque": 0}
_LISTED = r"\{\{[^=]*?\}\}|\{\}"
_IOTA = r"\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?"
_AXES = r"mesh\[[^\]]*\](?:, device_ids=\(\[[\d,]+\](?:T\([\d,]+\))?\))? *\{[^}]*\}"
GROUPS = rf"replica_groups=({_LISTED}|{_IOTA}|{_AXES})"
_MESH = re.compile(r"mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? *\{([^}]*)\}")
_MOVES = ("copy", "copy-start", "copy-done", "bitcast", "convert", "reshape", "optimization-barrier")


@dataclass(frozen=True, slots=True)
class Shape:
    """An array's type; `space` is the memory space of its layout (0: HBM, 1: VMEM on TPU)."""

    dtype: str
    dims: tuple[int, ...]
    space: int = 0

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.dims)

    @property
    def bits(self) -> int:
        """Bits of one element.

        >>> Shape("bf16", ()).bits, Shape("f8e4m3fn", ()).bits, Shape("s4", ()).bits, Shape("pred", ()).bits
        (16, 8, 4, 8)
        """
        match = re.search(r"\d+", self.dtype)
        return _BITS[self.dtype] if self.dtype in _BITS else int(match[0]) if match else 0

    @property
    def nbytes(self) -> float:
        """Bytes, without the padding of the layout's tiles."""
        return self.elements * self.bits / 8


@dataclass(frozen=True, slots=True)
class Instruction:
    """`name = shapes opcode(arguments), attributes`; a tuple's shapes are flattened."""

    name: str
    shapes: tuple[Shape, ...]
    opcode: str
    arguments: str
    attributes: str

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the operands."""
        return tuple(re.findall(r"%([\w.\-]+)", self.arguments))

    @property
    def called(self) -> tuple[str, ...]:
        """Names of the computations that it calls."""
        return tuple(n for text in _CALLS.findall(self.attributes) for n in re.findall(r"%([\w.\-]+)", text))

    def attribute(self, pattern: str) -> str | None:
        """The first group of a pattern in the attributes."""
        match = re.search(pattern, self.attributes)
        return match[1] if match else None


@dataclass(frozen=True, slots=True)
class Computation:
    """Instructions by name, in order, and the name of the root."""

    name: str
    instructions: dict[str, Instruction]
    root: str

    def parameter(self, number: int) -> str:
        """Name of a parameter."""
        return next(
            i.name for i in self.instructions.values() if i.opcode == "parameter" and i.arguments.strip() == str(number)
        )

    def origin(self, name: str) -> Instruction:
        """Return the instruction whose value this one merely copies, bitcasts or converts."""
        instruction = self.instructions[name]
        while instruction.opcode in _MOVES and instruction.operands and instruction.operands[0] in self.instructions:
            instruction = self.instructions[instruction.operands[0]]
        return instruction


@dataclass(frozen=True, slots=True)
class Module:
    """A compiled program."""

    computations: dict[str, Computation]
    entry: str
    partitions: int

    def runs(self) -> dict[str, int | None]:
        """Return how often each computation runs per run of the program; None where a loop's trip count is unknown.

        Each branch of a conditional counts as taken.
        """
        times_of: dict[str, int | None] = {}
        self._visit(self.computations[self.entry], 1, lambda index: None, times_of)
        return times_of

    def _visit(self, at: Computation, times: int | None, outer: Outer, times_of: dict[str, int | None]) -> None:
        times_of[at.name] = _sum(times_of.get(at.name, 0), times)
        for i in at.instructions.values():
            inside = _tuple_values(at, i, outer) if i.opcode == "while" else lambda index: None
            inner = _product(times, self._trips(i, inside)) if i.opcode == "while" else times
            for name in i.called:
                if name in self.computations:
                    self._visit(self.computations[name], inner, inside, times_of)

    def _trips(self, loop: Instruction, start: Outer) -> int | None:
        noted = loop.attribute(r'"known_trip_count":\{"n":"(\d+)"\}')
        if noted:
            return int(noted)
        condition, body = (
            self.computations[loop.attribute(rf"\b{k}=%([\w.\-]+)") or ""] for k in ("condition", "body")
        )
        test, sides = self._inlined(condition, condition.root)
        if test.opcode != "compare" or test.attribute(r"direction=(\w+)") != "LT":
            return None
        counter, bound = _index(condition, sides[0]), _constant(condition, sides[1], start)
        first = None if counter is None else start(counter)
        if counter is None or bound is None or first is None:
            return None
        return max(0, ceil((bound - first) / self._step(body, counter, start)))

    def _step(self, body: Computation, counter: int, start: Outer) -> int:
        """By how much a loop's counter grows; 1 where its addition is not recognised."""
        root = body.instructions[body.root]
        if root.opcode != "tuple":
            return 1
        grown, sides = self._inlined(body, body.origin(root.operands[counter]).name)
        values = [_constant(body, side, start) for side in sides if _index(body, side) != counter]
        return values[0] if grown.opcode == "add" and len(values) == 1 and values[0] else 1

    def _inlined(self, at: Computation, name: str) -> tuple[Instruction, tuple[str, ...]]:
        """An instruction and its operands, seen through a fusion that holds nothing else."""
        origin = at.origin(name)
        if origin.opcode != "fusion":
            return origin, origin.operands
        inner = self.computations[origin.called[0]]
        root = inner.instructions[inner.root]
        sides = [inner.origin(o) for o in root.operands]
        if any(s.opcode != "parameter" for s in sides):
            return origin, ()
        return root, tuple(origin.operands[int(s.arguments)] for s in sides)


Outer = Callable[[int], int | None]  # an element of a loop's first tuple -> its value, if constant


def parse_hlo(text: str) -> Module:
    """Read `compiled.as_text()`."""
    computations: dict[str, Computation] = {}
    entry, name, root, instructions = "", "", "", dict[str, Instruction]()
    for line in re.sub(r"/\*.*?\*/", "", text).splitlines():
        header = _HEADER.match(line)
        if header:
            name, root, instructions = header[2], "", {}
            entry = name if header[1] else entry
        elif line.startswith("}"):
            computations[name] = Computation(name, instructions, root)
        elif name and (start := _INSTRUCTION.match(line)):
            instructions[start[2]] = _instruction(start[2], line[start.end() :])
            root = start[2] if start[1] else root
    partitions = re.search(r"num_partitions=(\d+)", text)
    return Module(computations, entry, int(partitions[1]) if partitions else 1)


def calls(module: Module) -> Iterator[tuple[Instruction, str]]:
    """Every instruction that calls a computation, with the computation's name."""
    for computation in module.computations.values():
        for i in computation.instructions.values():
            for name in i.called:
                yield i, name


def _instruction(name: str, rest: str) -> Instruction:
    end = _closing(rest) if rest.startswith("(") else rest.index(" ")
    opcode = _OPCODE.match(rest, end)
    if not opcode:
        raise ValueError(f"HLO: expected an opcode after the type of %{name}, got {rest[end : end + 60]!r}")
    close = _closing(rest, opcode.end() - 1)
    return Instruction(
        name, _shapes(rest[:end]), opcode[1], rest[opcode.end() : close - 1], rest[close:].removeprefix(",").strip()
    )


def _shapes(text: str) -> tuple[Shape, ...]:
    return tuple(_shape(*groups) for groups in _SHAPE.findall(text))


def _shape(dtype: str, dims: str, layout: str) -> Shape:
    space = re.search(r"S\((\d+)\)", layout)
    sizes = tuple(int(d.lstrip("<=")) for d in dims.split(",") if d)
    return Shape(dtype, sizes, int(space[1]) if space else 0)


def _closing(text: str, start: int = 0) -> int:
    """Return the position at which the bracket that opens at `start` closes."""
    depth = 0
    for match in re.finditer(r"[()]", text[start:]):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return start + match.end()
    return len(text)


def _tuple_values(at: Computation, loop: Instruction, outer: Outer) -> Outer:
    first = at.origin(loop.operands[0])
    return lambda index: _constant(at, first.operands[index], outer) if first.opcode == "tuple" else None


def _constant(at: Computation, name: str, outer: Outer) -> int | None:
    """The integer that an instruction is, where it is constant."""
    origin = at.origin(name)
    if origin.opcode == "constant":
        return int(origin.arguments) if re.fullmatch(r"-?\d+", origin.arguments) else None
    index = _index(at, name)
    return None if index is None else outer(index)


def _index(at: Computation, name: str) -> int | None:
    """Return which element of the computation's parameter an instruction is."""
    origin = at.origin(name)
    if origin.opcode != "get-tuple-element" or at.origin(origin.operands[0]).opcode != "parameter":
        return None
    return int(origin.attribute(r"index=(\d+)") or 0)


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _product(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a * b


def parse_groups(text: str, devices: int) -> Groups:
    """Replica groups in any of HLO's forms; `{}` is one group of all devices, and `mesh` has axes, or parts of them.

    >>> parse_groups("{{0,1},{2,3}}", 4), parse_groups("[2,2]<=[2,2]T(1,0)", 4)
    (((0, 1), (2, 3)), ((0, 2), (1, 3)))
    >>> parse_groups("mesh['a'=2,'b'=2] {'a'}", 4)
    ((0, 2), (1, 3))
    """
    if text.startswith("mesh"):
        return _along_axes(*_MESH.fullmatch(text).groups())  # type: ignore[union-attr]
    if text.startswith("{"):
        listed = re.findall(r"\{([\d,]+)\}", text)
        return tuple(tuple(map(int, group.split(","))) for group in listed) or (tuple(range(devices)),)
    shape, dims, order = re.fullmatch(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text).groups()  # type: ignore[union-attr]
    return _rows(_numbered(dims, order).reshape(_ints(shape)))


def _along_axes(axes: str, dims: str | None, order: str | None, over: str) -> Groups:
    """Return the groups of a mesh `'a'=2,'b'=4` over `'b'` or `'b':(2)2`; `dims`: its devices are in another order.

    `'b':(2)2` is the part of b of size 2 that has 2 parts before it.
    """
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", axes)}
    used = {name: (int(a or 1), int(n or 0)) for name, a, n in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", over)}
    shape, inside = list[int](), list[int]()
    for name, size in sizes.items():
        before, part = used.get(name, (size, 1))
        part = part or size
        inside.append(len(shape) + 1)
        shape += [before, part, size // before // part]
    ids = _numbered(dims or str(prod(shape)), order).reshape(shape)
    ids = ids.transpose([n for n in range(ids.ndim) if n not in inside] + inside)
    return _rows(ids.reshape(-1, prod(shape[n] for n in inside)))


def _numbered(dims: str, order: str | None) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    ids = np.arange(prod(_ints(dims))).reshape(_ints(dims))
    return ids.transpose(_ints(order)) if order else ids


def _rows(ids: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Groups:
    return tuple(tuple(map(int, row)) for row in ids)


def _ints(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]
