"""The reshard between a component and the residual stream: resharding derived as programs of the notation.

The residual stream `R` is cut by each mesh axis over D, over tokens (B or T), or not at all (`-`). A body reads
`n` and gives `o`; each mesh axis cuts `n` over D, B, T or not at all, and may leave `o` a partial sum (`U`). So
an axis's part in the reshard is a *pair*: from and to. One program with an axis for every pair covers every case;
pairs of no mesh axis vanish, like roles.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from strategies.notation import Axes, Dim, Program, Role, Step, Tensor

KEPT = "DBT-"  # what an axis may do to the residual or to n
GIVEN = "DBTU-"  # what an axis may do to o
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def pairs(sources: str, targets: str) -> dict[str, str]:
    """The program axis of each pair, such as `DB` (from a cut of D to a cut of B)."""
    names = [s + t for s in sources for t in targets]
    return dict(zip(names, _LETTERS, strict=False))


def axes_of_pairs(
    program: Program, ends: Sequence[str], residual: Sequence[str], names: Sequence[str]
) -> dict[str, Axes]:
    """By program axis, the mesh axes bound to its pair: axis `names[i]` does `ends[i]` to the body's input or output.

    `residual[i]` is what that mesh axis cuts of the residual. An entry of one position finds T no longer cut.
    """
    one_position = program.name == "entry" and "T" not in program.input.names
    played = {}
    for name, end, cut in zip(names, ends, residual, strict=True):
        source = "-" if one_position and cut == "T" else cut
        played[name] = {"last": cut + "-", "entry": source + end, "exit": end + cut}[program.name]
    return {role.axis: tuple(name for name in names if played[name] == role.name) for role in program.roles}


def _tokens(phase: str) -> str:
    return "B" if phase == "decode" else "BT"


class _Cuts:
    """Axes of a dim before and after: those kept come first, the rest is minor and may go or come."""

    def __init__(self, sources: str, targets: str, dims: str) -> None:
        self.letters = pairs(sources, targets)
        self.sources, self.targets, self.dims = sources, targets, dims

    def axes(self, *names: str) -> Axes:
        return tuple(self.letters[name] for name in names)

    def kept(self, dim: str) -> Axes:
        return self.axes(dim + dim)

    def gone(self, dim: str) -> Axes:
        return self.axes(*(dim + t for t in self.targets if t != dim))

    def come(self, dim: str) -> Axes:
        return self.axes(*(s + dim for s in self.sources if s not in (dim, "U")))

    def tensor(self, name: str, *parts: str, partial: Axes = (), only: str | None = None) -> Tensor:
        dims = []
        for dim in self.dims if only is None else only:
            dims.append(Dim(dim, tuple(axis for part in parts for axis in self._part(part, dim))))
        return Tensor(name, tuple(dims), partial)

    def _part(self, part: str, dim: str) -> Axes:
        if part == "scattered":
            return self.axes("U" + dim)
        return {"kept": self.kept, "gone": self.gone, "come": self.come}[part](dim)

    def all(self, part: str) -> Axes:
        return tuple(axis for dim in self.dims for axis in self._part(part, dim))


def _roles(cuts: _Cuts) -> tuple[Role, ...]:
    return tuple(Role(axis, name) for name, axis in cuts.letters.items())


@cache
def entry(phase: str, last: bool = False, norm: str = "rms") -> Program:
    """Residual `R` -> normalised `n` as a body reads it; with `last`, of the last position of each prompt only.

    A layer norm (`norm` "layer") sums the residual, too; both sums go in one AllReduce.
    """
    tokens = "B" if last else _tokens(phase)
    cuts = _Cuts(KEPT, KEPT, tokens + "D")
    source = cuts.tensor("R", "kept", "gone")
    steps = list(_norm_steps(cuts, source, tokens, norm))
    gathered, sliced = cuts.all("gone"), cuts.all("come")
    whole, target = cuts.tensor("n", "kept"), cuts.tensor("n", "kept", "come")
    steps.append(Step("AllGather", gathered, (source.renamed("n"),), (whole,)))
    steps.append(Step("Slice", sliced, (whole,), (target,)))
    return _program(phase, "entry", cuts, steps, source, target)


def _norm_steps(cuts: _Cuts, source: Tensor, tokens: str, norm: str) -> tuple[Step, ...]:
    cut = source.axes("D")
    names = {"q": "SumSq"} | ({"m": "Sum"} if norm == "layer" else {})
    partial = tuple(cuts.tensor(name, "kept", "gone", only=tokens, partial=cut) for name in names)
    complete = tuple(cuts.tensor(name, "kept", "gone", only=tokens) for name in names)
    scale = Tensor("g", (Dim("D", cut),))
    return (
        *(Step(op, (), (source,), (out,)) for op, out in zip(names.values(), partial, strict=True)),
        Step("AllReduce", cut, partial, complete),
        Step("Norm", (), (source, *complete, scale), (source.renamed("n"),)),
    )


@cache
def last_position(phase: str = "prefill") -> Program:
    """Residual `R` over T -> its last position; the shard of T that owns it sends it to the others."""
    letters = pairs(KEPT, "-")
    cut = {dim: Dim(dim, (letters[dim + "-"],)) for dim in "BTD"}
    source = Tensor("R", (cut["B"], cut["T"], cut["D"]))
    partial = Tensor("R", (cut["B"], cut["D"]), cut["T"].axes)
    complete = Tensor("R", (cut["B"], cut["D"]))
    steps = (
        Step("Last", (), (source,), (partial,)),
        Step("AllReduce", cut["T"].axes, (partial,), (complete,)),
    )
    roles = tuple(Role(axis, name) for name, axis in letters.items())
    return Program("last", phase, "reshard", roles, steps, source, complete, source="reshard")


@cache
def leave(phase: str, add: bool = True) -> Program:
    """A body's `o`, partial sums and all -> the residual's cut, added to `R` (`add`) or become `R`."""
    cuts = _Cuts(GIVEN, KEPT, _tokens(phase) + "D")
    reduced, scattered = cuts.axes("U-"), cuts.axes(*("U" + dim for dim in cuts.dims))
    now = cuts.tensor("o", "kept", "gone", partial=reduced + scattered)
    source, steps = now, []
    for op, axes, parts, partial in (
        ("AllReduce", reduced, ("kept", "gone"), scattered),
        ("AllGather", cuts.all("gone"), ("kept",), scattered),
        ("Slice", cuts.all("come"), ("kept", "come"), scattered),
    ):
        after = cuts.tensor("o", *parts, partial=partial)
        steps.append(Step(op, axes, (now,), (after,)))
        now = after
    for dim in cuts.dims:
        axes = cuts.axes("U" + dim)
        after = Tensor("o", now.cut(dim, now.axes(dim) + axes).dims, tuple(a for a in now.partial if a not in axes))
        steps.append(Step("ReduceScatter", axes, (now,), (after,)))
        now = after
    result = now.renamed("R")
    steps.append(Step("Add", (), (result, now), (result,)) if add else Step("Rename", (), (now,), (result,)))
    return _program(phase, "exit", cuts, steps, source, result, residual=result if add else None)


def _program(
    phase: str,
    name: str,
    cuts: _Cuts,
    steps: list[Step],
    source: Tensor,
    target: Tensor,
    residual: Tensor | None = None,
) -> Program:
    return Program(
        name,
        phase,
        "reshard",
        _roles(cuts),
        tuple(steps),
        source,
        target,
        weights=("g",) if name == "entry" else (),
        index=(residual.name,) if residual is not None else (),
        source="reshard",
    )
