"""The book's notation: tensors with sharded, named dims; steps; programs; and their parser.

A *program axis* is one character. In a `.layout` file it is a role (what a mesh axis may do in this
component); after `strategies.bind.bind` it is the name of a mesh axis. `docs/reference/notation.md`
has the grammar as EBNF.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from mesh.errors import InputError

Axes = tuple[str, ...]
SEQUENCE = "S"
"""The dim of the keys that a cache holds: every cache has it, and of what is stored nothing else (`checker`)."""

_TENSOR = re.compile(r"\s*(?P<name>[A-Za-z][A-Za-z0-9]*)\s*\[(?P<dims>[^\]]*)\]\s*(?P<marks>(\{[^}]*\}\s*)*)")
_DIM = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9]*)(_(?P<axes>[A-Za-z0-9]+))?")
_MARK = re.compile(r"\{(?P<kind>[UA])_(?P<axes>[A-Za-z0-9]+)\}")
_OPTION = re.compile(r"(?!when=)([a-z]+)=([a-z]+)")
_CALL = re.compile(r"(?P<op>[A-Z][A-Za-z0-9]*)(_(?P<axes>[A-Za-z0-9]+))?\((?P<args>.*)\)")


@dataclass(frozen=True, slots=True)
class Dim:
    """One dim of a tensor and the axes that cut it, major first: `D_XY`."""

    name: str
    axes: Axes = ()

    def __str__(self) -> str:
        return f"{self.name}_{''.join(self.axes)}" if self.axes else self.name


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named tensor type: dims, the axes over which it is a partial sum `{U_}`, or a softmax triple `{A_}`."""

    name: str
    dims: tuple[Dim, ...]
    partial: Axes = ()
    triple: Axes = ()

    def __str__(self) -> str:
        marks = "".join(
            f" {{{kind}_{''.join(axes)}}}" for kind, axes in (("U", self.partial), ("A", self.triple)) if axes
        )
        return f"{self.name}[{', '.join(map(str, self.dims))}]{marks}"

    @property
    def names(self) -> tuple[str, ...]:
        """The dims' names, in order."""
        return tuple(dim.name for dim in self.dims)

    def axes(self, dim: str) -> Axes:
        """The axes that cut `dim`; empty where the tensor lacks it or it is whole."""
        return next((d.axes for d in self.dims if d.name == dim), ())

    def cut(self, dim: str, axes: Axes) -> Tensor:
        """Return the tensor with `dim` cut by `axes` instead."""
        return replace(self, dims=tuple(Dim(dim, axes) if d.name == dim else d for d in self.dims))

    def renamed(self, name: str) -> Tensor:
        """Return the tensor's type under another name."""
        return replace(self, name=name)

    def same_type(self, other: Tensor) -> bool:
        """Equal dims, cuts and marks; the order of the axes inside a mark does not matter."""
        return (
            self.dims == other.dims
            and set(self.partial) == set(other.partial)
            and set(self.triple) == set(other.triple)
        )


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a program: `outputs = op_axes(inputs; options)`; `A * B` has the op `Einsum`."""

    op: str
    axes: Axes
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    options: tuple[tuple[str, str], ...] = ()
    line: int = 0

    def __str__(self) -> str:
        conditions = "".join(f"when {value}: " for value in self.when)
        return f"{conditions}{', '.join(map(str, self.outputs))} = {self.right}"

    @property
    def when(self) -> tuple[str, ...]:
        """The features that a model must have for this step to run; none once the program is specialised."""
        return tuple(value for key, value in self.options if key == "when")

    @property
    def right(self) -> str:
        """The text right of the equals sign."""
        if self.op == "Einsum":
            return " * ".join(map(str, self.inputs))
        suffix = f"_{''.join(self.axes)}" if self.axes else ""
        options = "".join(f"; {key}={value}" for key, value in self.options if key != "when")
        return f"{self.op}{suffix}({', '.join(map(str, self.inputs))}{options})"

    def option(self, key: str) -> str | None:
        """The value of an option such as `order=zigzag`, or None."""
        return dict(self.options).get(key)


@dataclass(frozen=True, slots=True)
class Role:
    """A role of a mesh axis in a component: its cut of the weights and, in attention, of the cache."""

    axis: str
    name: str

    @property
    def weights(self) -> str:
        """The weights' part: `N` of `N+B`."""
        return self.name.split("+")[0]

    @property
    def cache(self) -> str:
        """The cache's (or tokens') part: `B` of `N+B`; empty where the role has none."""
        return self.name.partition("+")[2]


@dataclass(frozen=True, slots=True)
class Program:
    """A layout program: a header and a body. Axes are roles until bound to a mesh."""

    name: str
    phase: str
    component: str
    roles: tuple[Role, ...]
    steps: tuple[Step, ...]
    input: Tensor
    output: Tensor
    weights: tuple[str, ...] = ()
    cache: tuple[str, ...] = ()
    index: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    pad: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    source: str = field(default="", compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.name, self.phase, self.component, self.steps, self.input)))

    def __hash__(self) -> int:
        return self._hash  # programs are keys of many caches, and long

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))

    def role(self, axis: str) -> Role:
        """The role that the program axis stands for."""
        return next(role for role in self.roles if role.axis == axis)

    @property
    def caches(self) -> tuple[Tensor, ...]:
        """The types of the declared caches, in order, as they are first read or written."""
        tensors = [t for s in self.steps for t in (*s.inputs, *s.outputs)]
        return tuple(next(t for t in tensors if t.name == name) for name in self.cache)

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """Tensors that the body reads before it writes them: weights, caches, inputs, in order of first use."""
        written: set[str] = set()
        tensors: dict[str, Tensor] = {}
        for step in self.steps:
            for tensor in step.inputs:
                if tensor.name not in written:
                    tensors.setdefault(tensor.name, tensor)
            written.update(tensor.name for tensor in step.outputs)
        return tuple(tensors.values())


class LayoutError(InputError):
    """A program or assignment that breaks a rule of the notation; the message names line, tensor, dim and axis."""


def parse_tensor(text: str, where: str = "") -> Tensor:
    """Parse `Q[B_Z, N_Y, H] {U_X}`; raise `LayoutError` naming `where`."""
    match = _TENSOR.fullmatch(text)
    if not match:
        raise LayoutError(f"{where}'{text.strip()}' is not a tensor; expected a form like Q[B_Z, N_Y, H] {{U_X}}")
    parts = match["dims"].split(",") if match["dims"].strip() else []
    dims = tuple(_parse_dim(part.strip(), text, where) for part in parts)
    marks = match["marks"].strip()
    if not re.fullmatch(rf"({_MARK.pattern}\s*)*".replace("?P<kind>", "").replace("?P<axes>", ""), marks):
        raise LayoutError(f"{where}'{marks}' is not a mark; expected {{U_X}} (partial sum) or {{A_X}} (softmax triple)")
    kinds = [mark["kind"] for mark in _MARK.finditer(marks)]
    if len(set(kinds)) < len(kinds):
        raise LayoutError(
            f"{where}'{marks}' has one kind of mark twice; expected its axes in one mark, such as {{U_XY}}"
        )
    marked = {mark["kind"]: tuple(mark["axes"]) for mark in _MARK.finditer(marks)}
    return Tensor(match["name"], dims, marked.get("U", ()), marked.get("A", ()))


def _parse_dim(text: str, tensor: str, where: str) -> Dim:
    match = _DIM.fullmatch(text)
    if not match:
        raise LayoutError(f"{where}'{text}' in '{tensor.strip()}' is not a dim; expected a form like D or D_XY")
    return Dim(match["name"], tuple(match["axes"] or ""))


def parse_step(text: str, line: int = 0, where: str = "") -> Step:
    """Parse one body line; raise `LayoutError` naming `where`."""
    left, equals, right = text.partition(" = ")
    if not equals:
        raise LayoutError(f"{where}'{text.strip()}' has no ' = '; expected TENSOR = OP(TENSOR, ...)")
    outputs = _parse_tensors(left, where)
    call = _CALL.fullmatch(right.strip())
    if call:
        args, *options = call["args"].split(";")
        pairs = tuple(_parse_option(option, where) for option in options)
        return Step(call["op"], tuple(call["axes"] or ""), _parse_tensors(args, where), outputs, pairs, line)
    operands = right.split(" * ")
    if len(operands) != 2:
        raise LayoutError(f"{where}'{right.strip()}' is no operation; expected A * B or OP_axes(A, ...)")
    return Step("Einsum", (), tuple(parse_tensor(part, where) for part in operands), outputs, (), line)


def _parse_option(text: str, where: str) -> tuple[str, str]:
    match = _OPTION.fullmatch(text.strip())
    if not match:
        raise LayoutError(f"{where}'{text.strip()}' is not an option; expected a form like order=zigzag")
    return match[1], match[2]


def _parse_tensors(text: str, where: str) -> tuple[Tensor, ...]:
    parts = re.split(r",(?![^\[]*\])", text)
    return tuple(parse_tensor(part, where) for part in parts)
