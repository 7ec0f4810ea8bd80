"""What XLA's own choice of collectives comes to, against the priced ones.

What `rewrites` does not explain is compared as bytes that each device sends, for the layers and for the vocabulary
apart, since XLA may do a step's work in another component. A ReduceScatter may cost twice its price: compilers reduce
everything, or rotate shards under the matmul. Where more is sent, the largest collectives that do it are findings.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from executor.hlo import Collective, collectives
from executor.promises import Promise, promises, widths
from executor.rewrites import Comparison, Difference, Rewrite, compare_collectives
from executor.verdict import Finding, Level, verdict
from planner.plan import Plan

Sizes = Mapping[str, int]
SLACK = 1.001
_GROUPS = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? *\{([^}]*)\}"
)


def judge_collectives(plan: Plan, text: str, sizes: Sizes, level: str, mode: str) -> Level:
    """The level of a compiled program on a mesh of these sizes."""
    promised = promises(plan.cost.steps, sizes, widths(plan))
    parts = list(_parts(promised, collectives(with_listed_groups(text)), sizes))
    findings = tuple(f for part in parts for f in part.findings())
    notes = tuple(note for part in parts for note in part.notes())
    return verdict(level, mode, len(promised) + 1, findings, notes)


def _parts(promised: Sequence[Promise], found: Sequence[Collective], sizes: Sizes) -> Iterator[_Part]:
    """The layers, and the vocabulary."""
    for vocab in (False, True):
        ours = [p for p in promised if (_component(p) == "vocab") == vocab]
        theirs = [c for c in found if _in_vocab(c) == vocab]
        yield _Part(compare_collectives(ours, theirs, sizes), sizes)


def _in_vocab(c: Collective) -> bool:
    """Layers run in a loop; what lost its name there runs more than once."""
    return tensor_of(c).startswith("vocab/") or ("/while/body" not in c.op_name and c.runs == 1)


def with_listed_groups(text: str) -> str:
    """The program with replica groups of the form `mesh['a'=2,'b'=4] {'b'}`, which jit makes, listed.

    >>> with_listed_groups("replica_groups=mesh['a'=2,'b'=2] {'a'}, x")
    'replica_groups={{0,2},{1,3}}, x'
    """
    return _GROUPS.sub(_listed, text)


def _listed(found: re.Match[str]) -> str:
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", found[1])}
    ids = np.arange(prod(sizes.values()))
    if found[2]:
        shape = [int(n) for n in found[2].split(",")]
        ids = ids.reshape(shape).transpose([int(n) for n in found[3].split(",")] if found[3] else None)
    shape, inside = [], []
    used = {name: (int(a or 1), int(b or 0)) for name, a, b in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", found[4])}
    for name, size in sizes.items():
        before, part = used.get(name, (size, 1))
        part = part or size
        inside.append(len(shape) + 1)
        shape += [before, part, size // before // part]
    ids = ids.reshape(shape)
    ids = ids.transpose([n for n in range(ids.ndim) if n not in inside] + inside)
    rows = ids.reshape(-1, prod(shape[n] for n in inside)).tolist()
    return "replica_groups={" + ",".join("{" + ",".join(map(str, row)) + "}" for row in rows) + "}"


def sent_bytes(kind: str, n: int, nbytes: float) -> float:
    """Bytes that each device sends in a collective over `n` devices of `nbytes` in the convention of the prices."""
    if kind in ("CollectivePermute", "Send"):
        return nbytes
    return nbytes * {"AllReduce": 2 * (n - 1) / n, "AllToAll": (n - 1) / n**2}.get(kind, (n - 1) / n)


def _of_promise(p: Promise, sizes: Sizes) -> float:
    return p.runs * sent_bytes(p.kind, prod(sizes[a] for a in p.axes), p.elements * p.width)


def _of_collective(c: Collective) -> float:
    return (c.runs or 1) * sent_bytes(c.kind, len(c.groups[0]) if c.groups else 2, c.nbytes)


def _promised_bytes(promised: Sequence[Promise], sizes: Sizes) -> float:
    return sum(_of_promise(p, sizes) for p in promised)


def tensor_of(c: Collective) -> str:
    """`component/tensor` that a collective serves, by the scopes of `automatic_model`; else its operation's name."""
    words = [w for w in c.op_name.split("/") if not w.startswith("jit(")]
    words = [w.lstrip("(") for w in words if w not in ("while", "body", "closed_call", "cond")]
    if len(words) > 1:
        return f"{words[0]}/{words[1]}"
    return "".join(words) or "an unnamed operation"


@dataclass(frozen=True)
class _Lot:
    """What was priced and what is done instead: of one component over the same axes, or of all that is left."""

    promised: tuple[Promise, ...]
    found: tuple[Collective, ...]
    sizes: Sizes

    @property
    def extra(self) -> float:
        """Bytes sent beyond the price."""
        return sum(map(_of_collective, self.found)) - _promised_bytes(self.promised, self.sizes)

    @property
    def excess(self) -> float:
        """Bytes sent beyond the price with a ReduceScatter's twice; at most 0: that is well."""
        twice = _promised_bytes([p for p in self.promised if p.kind == "ReduceScatter"], self.sizes)
        return self.extra - twice - (SLACK - 1) * _promised_bytes(self.promised, self.sizes)

    def note(self) -> str:
        """What comes instead of what."""
        wanted = "; ".join(_priced(p, self.sizes) for p in self.promised) or "nothing"
        return f"instead of {wanted} XLA does {_counted(self.found, self.sizes)}, {_mb(self.extra)}"

    def findings(self) -> Iterator[Finding]:
        """The largest collectives, until they make up what is sent too much."""
        excess = self.excess
        for c in sorted(self.found, key=lambda c: (-_of_collective(c), c.name)):
            if excess <= 0:
                return
            excess -= _of_collective(c)
            yield Finding(what=tensor_of(c), promised=self._instead(c), found=f"XLA added {_told(c, self.sizes)}")

    def _instead(self, c: Collective) -> str:
        component = tensor_of(c).split("/")[0]
        return "; ".join(_priced(p, self.sizes) for p in self.promised if _component(p) == component) or "nothing"


@dataclass(frozen=True)
class _Part:
    """What came of one part of the step."""

    outcome: Comparison
    sizes: Sizes

    @cached_property
    def _kept(self) -> list[Rewrite]:
        """Rewrites that at most double what is sent."""
        return [r for r in self.outcome.rewrites if r.extra_bytes <= _promised_bytes(r.promised, self.sizes)]

    @cached_property
    def _lots(self) -> list[_Lot]:
        """Those that are well by themselves, and last what is left of all."""
        left: list[Difference | Rewrite] = [*self.outcome.differences]
        left += [r for r in self.outcome.rewrites if r not in self._kept]
        wanted = dict.fromkeys(p for d in left for p in d.promised)
        found = dict.fromkeys(c for d in left for c in d.found)
        lots = []
        for component, axes in dict.fromkeys((_component(p), p.axes) for p in wanted):
            ours = tuple(p for p in wanted if (_component(p), p.axes) == (component, axes))
            theirs = tuple(c for c in found if (tensor_of(c).split("/")[0], c.axes(self.sizes)) == (component, axes))
            lot = _Lot(ours, theirs, self.sizes)
            if theirs and lot.excess <= 0:
                lots.append(lot)
        used = {id(x) for lot in lots for x in (*lot.promised, *lot.found)}
        rest = tuple(p for p in wanted if id(p) not in used), tuple(c for c in found if id(c) not in used)
        return [*lots, _Lot(rest[0], rest[1], self.sizes)]

    def findings(self) -> Iterator[Finding]:
        """What is sent too much."""
        return self._lots[-1].findings()

    def notes(self) -> Iterator[str]:
        """Rewrites, and what comes instead of what was priced, where it is not too much."""
        yield from map(_rewrite, self._kept)
        yield from (lot.note() for lot in self._lots if lot.excess <= 0 and (lot.found or lot.promised))


def _component(p: Promise) -> str:
    return p.text.split(":")[0]


def _counted(found: Sequence[Collective], sizes: Sizes) -> str:
    alike = Counter((tensor_of(c), _short(c, sizes)) for c in found)
    return (
        "; ".join(f"{f'{n} x ' if n > 1 else ''}{what} in {where}" for (where, what), n in alike.items()) or "nothing"
    )


def _short(c: Collective, sizes: Sizes) -> str:
    axes, kinds = c.axes(sizes), "+".join(dict.fromkeys(p.dtype for p in c.parts))
    return f"{c.kind} over {''.join(axes) if axes else 'no mesh axes'} of {c.elements} {kinds}, {c.runs} times"


def _told(c: Collective, sizes: Sizes) -> str:
    return f"{_short(c, sizes)} ({_mb(_of_collective(c))}; op {c.op_name or c.name})"


def _priced(p: Promise, sizes: Sizes) -> str:
    return (
        f"{p.kind} over {''.join(p.axes)} of {p.elements:.0f}, {p.runs} times ({_mb(_of_promise(p, sizes))}; {p.text})"
    )


def _rewrite(r: Rewrite) -> str:
    did = ", ".join(dict.fromkeys(f"{c.kind} in {tensor_of(c)}" for c in r.found))
    return f"{r.kind}: {'; '.join(p.text for p in r.promised)} runs as {did}, {_mb(r.extra_bytes)}"


def _mb(nbytes: float) -> str:
    return f"{nbytes / 1e6:+.6g} MB per device and step"
