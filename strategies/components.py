"""The components of a model: what a layout is chosen for, and the programs it is chosen from.

A component is attention, MLP, MoE or a parallel block of one or more layer groups (groups of equal shape share
a layout), or the vocabulary (embedding and unembedding, which share theirs).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from mesh.errors import InputError
from strategies import residual_program
from strategies.checker import Requirements, check
from strategies.layoutfile import builtin_programs, specialise
from strategies.models.models import LayerGroup, Model
from strategies.models.workload import Workload, features, layer_dims, vocab_dims
from strategies.notation import LayoutError, Program, Tensor

IDLE = "-"


@dataclass(frozen=True)
class CheckedProgram:
    """A checked program and what it asks of sizes."""

    program: Program
    needs: Requirements


@dataclass(frozen=True)
class Body:
    """One way to run a component: its program (for the vocabulary two, which share their roles)."""

    name: str
    parts: tuple[CheckedProgram, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """The program axes, one per role."""
        return tuple(role.axis for role in self.parts[0].program.roles)

    @property
    def caches(self) -> tuple[Tensor, ...]:
        """The types of the caches that the programs declare, with their dims and the program axes that cut these."""
        return tuple(t for part in self.parts for t in part.program.caches)

    def role_name(self, axis: str) -> str:
        """The name of a program axis's role; `-` for a mesh axis that idles."""
        return IDLE if axis == IDLE else self.parts[0].program.role(axis).name

    def axis_of(self, role: str) -> str:
        """The program axis that has this role."""
        for candidate in self.parts[0].program.roles:
            if candidate.name == role:
                return candidate.axis
        if role == IDLE:
            return IDLE
        known = ", ".join(r.name for r in self.parts[0].program.roles)
        raise InputError(f"program {self.name} has no role '{role}'; it has {known}, and - for idle")

    def reads(self, axis: str) -> str:
        """Return the dim of the body's input that the program axis cuts: D, B, T or `-`."""
        return _cut_by(axis, self.parts[-1].program.input)

    def gives(self, axis: str) -> str:
        """Return the program axis's part in the body's output: it cuts D, B or T, leaves a partial sum (U), or `-`."""
        output = self.parts[0].program.output
        return "U" if axis in output.partial else _cut_by(axis, output)


def _cut_by(axis: str, tensor: Tensor) -> str:
    return next((d.name for d in tensor.dims if axis in d.axes), IDLE)


@dataclass(frozen=True)
class Component:
    """A part of the model that one layout is chosen for: its kind, its layer groups, and how many layers these have."""

    name: str
    kind: str
    groups: tuple[int, ...]
    times: int
    dims: Mapping[str, float]
    bodies: tuple[Body, ...]
    tied: bool = False
    norm: str = "rms"

    def body(self, name: str) -> Body:
        """The body of that name; raises `InputError` naming those there are."""
        for body in self.bodies:
            if body.name == name:
                return body
        raise InputError(f"{self.name} has no program '{name}'; known: {', '.join(b.name for b in self.bodies)}")


def entry_parts(component: Component, phase: str) -> tuple[CheckedProgram, ...]:
    """The reshard from the residual to a component's input: the programs, checked.

    They gather, slice or move what the component's input needs, and apply the norm before it.
    """
    if component.kind == "vocab" and phase == "prefill":
        return (_part(residual_program.last_position()), _part(residual_program.entry(phase, True, component.norm)))
    return (_part(residual_program.entry(phase, False, component.norm)),)


def exit_parts(component: Component, phase: str) -> tuple[CheckedProgram, ...]:
    """The reshard from a component's output back to the residual: the programs, checked.

    They reduce its partial sums, cut the sum as the residual stream is cut, and add it.
    """
    return (_part(residual_program.leave(phase, component.kind != "vocab")),)


@cache
def _part(program: Program) -> CheckedProgram:
    return CheckedProgram(program, check(program))


def components(model: Model, work: Workload, extra: Sequence[Program] = ()) -> tuple[Component, ...]:
    """The model's components for this workload; `extra` programs of the user's join those that come with us.

    Raises `LayoutError` where an extra program breaks a rule.
    """
    _check_names(extra)
    programs = (*builtin_programs(), *extra)
    layers_of: dict[tuple[str, object], list[int]] = {}
    for index, group in enumerate(model.groups):
        for kind in _kinds(group):
            shape = group if kind == "block" else group.attention if kind == "attention" else group.mlp
            layers_of.setdefault((kind, shape), []).append(index)
    many = {kind: sum(k == kind for k, _ in layers_of) for kind, _ in layers_of}
    result = [
        _component(kind, tuple(groups), many[kind] > 1, model, work, programs)
        for (kind, _), groups in layers_of.items()
    ]
    return (*result, _vocabulary(model, work, programs))


def _check_names(extra: Sequence[Program]) -> None:
    """A user's program may not take the name of another of its phase and component: layout files name them."""
    taken = {(p.phase, p.component, p.name) for p in builtin_programs()}
    for program in extra:
        key = (program.phase, program.component, program.name)
        if key in taken:
            raise LayoutError(
                f"{program.source}: there is a {program.phase} program '{program.name}' for {program.component} "
                "already; expected another name"
            )
        taken.add(key)


def _kinds(group: LayerGroup) -> tuple[str, ...]:
    mlp = "moe" if group.mlp.moe else "mlp"
    return ("block",) if group.parallel and not group.mlp.moe else ("attention", mlp)


def _component(
    kind: str, groups: tuple[int, ...], numbered: bool, model: Model, work: Workload, programs: Sequence[Program]
) -> Component:
    group = model.groups[groups[0]]
    bodies = tuple(
        Body(p.name, (_specialised(p, features(group)),))
        for p in programs
        if p.component == kind and p.phase == work.phase
    )
    dims = layer_dims(model, group, work)
    times = sum(model.groups[i].count for i in groups)
    return Component(f"{kind}{groups[0]}" if numbered else kind, kind, groups, times, dims, bodies, norm=model.norm)


@cache
def _specialised(program: Program, met: frozenset[str]) -> CheckedProgram:
    return _part(specialise(program, met))


def _vocabulary(model: Model, work: Workload, programs: Sequence[Program]) -> Component:
    named = {
        kind: [p for p in programs if p.component == kind and p.phase == work.phase] for kind in ("embed", "unembed")
    }
    bodies = []
    for up in named["unembed"]:
        for down in named["embed"]:
            if up.roles == down.roles:
                name = up.name if down.name == "embed" else f"{down.name}+{up.name}"
                bodies.append(Body(name, (_specialised(down, frozenset()), _specialised(up, frozenset()))))
    if not bodies:
        raise LayoutError("no embed and unembed program with equal roles; expected one of each for this phase")
    return Component("vocab", "vocab", (), 1, vocab_dims(model, work), tuple(bodies), model.tied, model.norm)
