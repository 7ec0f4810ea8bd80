"""Parse the text of compiled HLO into computations and instructions, and count how often each computation runs.

The input is what `compiled.as_text()` prints, so the parser works for every backend. XLA notes a loop's trip count on
CPU; on TPU the parser derives it from the condition (`counter < bound`), the counter's start and its step. Replica
groups are the groups of devices that communicate in a collective; HLO writes them in several forms (`parse_groups`).
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
    """The type of an array: HLO dtype, sizes of its dims, and memory space of its layout (0: HBM, 1: VMEM on TPU)."""

    dtype: str
    dims: tuple[int, ...]
    space: int = 0

    @property
    def elements(self) -> int:
        """The number of elements."""
        return prod(self.dims)

    @property
    def bits(self) -> int:
        """The bits of one element.

        >>> Shape("bf16", ()).bits, Shape("f8e4m3fn", ()).bits, Shape("s4", ()).bits, Shape("pred", ()).bits
        (16, 8, 4, 8)
        """
        match = re.search(r"\d+", self.dtype)
        return _BITS[self.dtype] if self.dtype in _BITS else int(match[0]) if match else 0

    @property
    def nbytes(self) -> float:
        """The bytes of the array, without the padding of the layout's tiles."""
        return self.elements * self.bits / 8


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of HLO, `name = shapes opcode(arguments), attributes`; the shapes of a tuple are flattened."""

    name: str
    shapes: tuple[Shape, ...]
    opcode: str
    arguments: str
    attributes: str

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of its operands."""
        return tuple(re.findall(r"%([\w.\-]+)", self.arguments))

    @property
    def called(self) -> tuple[str, ...]:
        """The names of the computations that it calls."""
        return tuple(n for text in _CALLS.findall(self.attributes) for n in re.findall(r"%([\w.\-]+)", text))

    def attribute(self, pattern: str) -> str | None:
        """Search the attributes for a regular expression and return its first group; None without a match."""
        match = re.search(pattern, self.attributes)
        return match[1] if match else None


@dataclass(frozen=True, slots=True)
class Computation:
    """A computation: its instructions by name, in order, and the name of its root."""

    name: str
    instructions: dict[str, Instruction]
    root: str

    def parameter(self, number: int) -> str:
        """Return the name of parameter `number`."""
        return next(
            i.name for i in self.instructions.values() if i.opcode == "parameter" and i.arguments.strip() == str(number)
        )

    def origin(self, name: str) -> Instruction:
        """Follow copies, bitcasts, conversions and reshapes back to the instruction that computes the value."""
        instruction = self.instructions[name]
        while instruction.opcode in _MOVES and instruction.operands and instruction.operands[0] in self.instructions:
            instruction = self.instructions[instruction.operands[0]]
        return instruction


@dataclass(frozen=True, slots=True)
class Module:
    """A compiled program: its computations by name, the name of the entry, and the number of partitions (devices)."""

    computations: dict[str, Computation]
    entry: str
    partitions: int

    def runs(self) -> dict[str, int | None]:
        """Return how often each computation runs per run of the program; None if a loop's trip count is unknown.

        Each branch of a conditional counts as taken. Computations that never run are left out.
        """
        counts: dict[str, int | None] = {}
        self._visit(self.computations[self.entry], 1, lambda index: None, counts)
        return counts

    def _visit(
        self, computation: Computation, times: int | None, outer: TupleValues, counts: dict[str, int | None]
    ) -> None:
        counts[computation.name] = _sum(counts.get(computation.name, 0), times)
        for instruction in computation.instructions.values():
            inside = (
                _tuple_values(computation, instruction, outer) if instruction.opcode == "while" else lambda index: None
            )
            inner = _product(times, self._trips(instruction, inside)) if instruction.opcode == "while" else times
            for name in instruction.called:
                if name in self.computations:
                    self._visit(self.computations[name], inner, inside, counts)

    def _trips(self, loop: Instruction, start: TupleValues) -> int | None:
        known = loop.attribute(r'"known_trip_count":\{"n":"(\d+)"\}')
        if known:
            return int(known)
        condition, body = (
            self.computations[loop.attribute(rf"\b{k}=%([\w.\-]+)") or ""] for k in ("condition", "body")
        )
        test, operands = self._inlined(condition, condition.root)
        if test.opcode != "compare" or test.attribute(r"direction=(\w+)") != "LT":
            return None
        counter, bound = _element_number(condition, operands[0]), _constant(condition, operands[1], start)
        first = None if counter is None else start(counter)
        if counter is None or bound is None or first is None:
            return None
        return max(0, ceil((bound - first) / self._step(body, counter, start)))

    def _step(self, body: Computation, counter: int, start: TupleValues) -> int:
        """Return the increment of a loop's counter; 1 if its addition is not recognised."""
        root = body.instructions[body.root]
        if root.opcode != "tuple":
            return 1
        grown, operands = self._inlined(body, body.origin(root.operands[counter]).name)
        values = [_constant(body, operand, start) for operand in operands if _element_number(body, operand) != counter]
        return values[0] if grown.opcode == "add" and len(values) == 1 and values[0] else 1

    def _inlined(self, computation: Computation, name: str) -> tuple[Instruction, tuple[str, ...]]:
        """Return an instruction and its operands, seen through a fusion that contains nothing else."""
        instruction = computation.origin(name)
        if instruction.opcode != "fusion":
            return instruction, instruction.operands
        inner = self.computations[instruction.called[0]]
        root = inner.instructions[inner.root]
        origins = [inner.origin(o) for o in root.operands]
        if any(origin.opcode != "parameter" for origin in origins):
            return instruction, ()
        return root, tuple(instruction.operands[int(origin.arguments)] for origin in origins)


TupleValues = Callable[[int], int | None]
"""A function from the number of an element of a loop's initial tuple to its value, None if it is not constant."""


def parse_hlo(text: str) -> Module:
    """Parse the text of `compiled.as_text()`; raises `ValueError` on an instruction without an opcode."""
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
    """Yield every instruction that calls a computation, with the computation's name."""
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
    return tuple(_shape(*match) for match in _SHAPE.findall(text))


def _shape(dtype: str, dims: str, layout: str) -> Shape:
    space = re.search(r"S\((\d+)\)", layout)
    sizes = tuple(int(d.lstrip("<=")) for d in dims.split(",") if d)
    return Shape(dtype, sizes, int(space[1]) if space else 0)


def _closing(text: str, start: int = 0) -> int:
    """Return the index just behind the bracket that closes the first one opened from `start` on."""
    depth = 0
    for bracket in re.finditer(r"[()]", text[start:]):
        depth += 1 if bracket[0] == "(" else -1
        if depth == 0:
            return start + bracket.end()
    return len(text)


def _tuple_values(computation: Computation, loop: Instruction, outer: TupleValues) -> TupleValues:
    first = computation.origin(loop.operands[0])
    return lambda index: _constant(computation, first.operands[index], outer) if first.opcode == "tuple" else None


def _constant(computation: Computation, name: str, outer: TupleValues) -> int | None:
    """Return the integer value of an instruction; None if it is not constant."""
    instruction = computation.origin(name)
    if instruction.opcode == "constant":
        return int(instruction.arguments) if re.fullmatch(r"-?\d+", instruction.arguments) else None
    index = _element_number(computation, name)
    return None if index is None else outer(index)


def _element_number(computation: Computation, name: str) -> int | None:
    """Return the number of the element of the computation's parameter that an instruction reads, None if none."""
    instruction = computation.origin(name)
    if instruction.opcode != "get-tuple-element" or computation.origin(instruction.operands[0]).opcode != "parameter":
        return None
    return int(instruction.attribute(r"index=(\d+)") or 0)


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _product(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a * b


def parse_groups(text: str, devices: int) -> Groups:
    """Parse replica groups in any of HLO's forms; `devices` is the number of devices of the program.

    The forms are lists (`{}` is one group of all devices), iota tiles (`[2,2]<=[4]`), and axes of a `mesh` or parts of
    them.

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
    return _rows(_device_ids(dims, order).reshape(_ints(shape)))


def _along_axes(axes: str, dims: str | None, order: str | None, over: str) -> Groups:
    """Return the replica groups along the axes `over` of a mesh `'a'=2,'b'=4`.

    `dims` and `order` are given if the devices have another order than 0, 1, ... An axis of `over` is `'b'`, or
    `'b':(2)2`: the part of b of size 2 that has 2 parts before it.
    """
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", axes)}
    used = {name: (int(a or 1), int(n or 0)) for name, a, n in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", over)}
    shape, inside = list[int](), list[int]()
    for name, size in sizes.items():
        before, part = used.get(name, (size, 1))
        part = part or size
        inside.append(len(shape) + 1)
        shape += [before, part, size // before // part]
    ids = _device_ids(dims or str(prod(shape)), order).reshape(shape)
    ids = ids.transpose([n for n in range(ids.ndim) if n not in inside] + inside)
    return _rows(ids.reshape(-1, prod(shape[n] for n in inside)))


def _device_ids(dims: str, order: str | None) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    ids = np.arange(prod(_ints(dims))).reshape(_ints(dims))
    return ids.transpose(_ints(order)) if order else ids


def _rows(ids: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Groups:
    return tuple(tuple(map(int, row)) for row in ids)


def _ints(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]
