"""The judgement of automatic mode: XLA's own choice of collectives, against the priced ones.

What `rewrites` does not explain is compared as bytes that each device sends, for the layers and for the vocabulary
apart; XLA may do a step's work in another component. A ReduceScatter may cost twice its price: compilers reduce
everything, or rotate shards under the matmul; so may an AllGather that they do as a sum of zero-padded shards. Where
more is sent, the largest collectives that do it are findings.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from executor.compiler.expected import ExpectedCollective, expected_collectives, widths
from executor.compiler.hlo import Collective, collectives, sent_share
from executor.compiler.rewrites import CollectiveDiff, Difference, Rewrite, compare_collectives
from executor.verdict import Finding, Level, verdict
from planner.plan.plan import Plan

Sizes = Mapping[str, int]
SLACK = 1.001
_NO_SCOPES = ("while", "body", "closed_call", "eval_jaxpr", "cond")  # JAX's own


def judge_collectives(plan: Plan, text: str, sizes: Sizes, level: str, mode: str) -> Level:
    """The level of a compiled program on a mesh of these sizes."""
    promised = expected_collectives(plan.cost.steps, sizes, widths(plan))
    parts = list(_parts(promised, collectives(text), sizes))
    findings = tuple(f for part in parts for f in part.findings())
    notes = tuple(note for part in parts for note in part.notes())
    return verdict(level, mode, len(promised) + 1, findings, notes)


def _parts(promised: Sequence[ExpectedCollective], compiled: Sequence[Collective], sizes: Sizes) -> Iterator[_Part]:
    """The layers, and the vocabulary."""
    for vocab in (False, True):
        ours = [p for p in promised if (_component(p) == "vocab") == vocab]
        own = [c for c in compiled if _in_vocab(c) == vocab]
        yield _Part(_compared(ours, own, sizes), sizes)


def _compared(promised: Sequence[ExpectedCollective], compiled: Sequence[Collective], sizes: Sizes) -> CollectiveDiff:
    """Each component by itself, so that none is explained by what another does, but by what has lost its name."""
    names = list(dict.fromkeys(map(_component, promised)))
    nameless, parts = [c for c in compiled if _component_of(c) not in names], []
    for name in names:
        ours = [p for p in promised if _component(p) == name]
        own = [c for c in compiled if _component_of(c) == name]
        unused = {id(c) for d in compare_collectives(ours, own + nameless, sizes).differences for c in d.compiled}
        parts.append(compare_collectives(ours, own + [c for c in nameless if id(c) not in unused], sizes))
        nameless = [c for c in nameless if id(c) in unused]
    parts.append(compare_collectives((), nameless, sizes))
    return CollectiveDiff(tuple(r for p in parts for r in p.rewrites), tuple(d for p in parts for d in p.differences))


def _in_vocab(c: Collective) -> bool:
    """Layers run in a loop; what lost its name there runs more than once."""
    return tensor_of(c).startswith("vocab/") or ("/while/body" not in c.op_name and c.runs == 1)


def _of_promise(p: ExpectedCollective, sizes: Sizes) -> float:
    return p.runs * (p.elements * p.width * sent_share(p.kind, prod(sizes[a] for a in p.axes)))


def _of_collective(c: Collective) -> float:
    return (c.runs or 1) * (c.nbytes * sent_share(c.kind, len(c.groups[0]) if c.groups else 2))


def _promised_bytes(promised: Sequence[ExpectedCollective], sizes: Sizes) -> float:
    return sum(_of_promise(p, sizes) for p in promised)


def tensor_of(c: Collective) -> str:
    """`component/tensor` that a collective serves, by the scopes of `automatic_model`; else its operation's name.

    libtpu 0.0.50 leaves some without a name: then what uses the result tells. Joined operations have several names.
    """
    names = [_scopes(name) for name in (c.op_name or c.user_op_name).split(";")]
    words = next((words for words in names if len(words) > 1), names[0])
    if len(words) > 1:
        return f"{words[0]}/{words[1]}"
    return "".join(words) or "an unnamed operation"


def _scopes(name: str) -> list[str]:
    words = [w for w in name.split("/") if not w.startswith("jit(")]
    return [w.lstrip("(") for w in words if w not in _NO_SCOPES]


@dataclass(frozen=True)
class _Unmatched:
    """Priced collectives and those compiled instead: of one component over the same axes, or of all that is left."""

    items: tuple[Difference | Rewrite, ...]
    sizes: Sizes

    @cached_property
    def expected(self) -> tuple[ExpectedCollective, ...]:
        """Return the priced collectives."""
        return tuple(dict.fromkeys(p for one in self.items for p in one.expected))

    @cached_property
    def compiled(self) -> tuple[Collective, ...]:
        """Return the compiled collectives, some of which may serve others, too."""
        return tuple(dict.fromkeys(c for one in self.items for c in one.compiled))

    @property
    def extra(self) -> float:
        """Bytes sent beyond the price."""
        return sum(one.extra_bytes for one in self.items)

    @property
    def excess(self) -> float:
        """Bytes sent beyond the price, twice that of what may be reduced as a whole; at most 0: that is well."""
        twice = _promised_bytes([p for p in self.expected if self._may_double(p)], self.sizes)
        return self.extra - twice - (SLACK - 1) * _promised_bytes(self.expected, self.sizes)

    def _may_double(self, p: ExpectedCollective) -> bool:
        reduced = [c for c in self.compiled if c.kind == "AllReduce" and c.axes(self.sizes) == p.axes]
        as_sum = p.kind == "AllGather" and sum(c.elements for c in reduced) == p.elements
        return p.kind == "ReduceScatter" or as_sum

    def note(self) -> str:
        """Return a line that names the compiled collectives and the priced ones that they replace."""
        wanted = "; ".join(_priced(p, self.sizes) for p in self.expected) or "nothing"
        return f"instead of {wanted} XLA does {_counted(self.compiled, self.sizes)}, {_mb(self.extra)}"

    def findings(self) -> Iterator[Finding]:
        """The largest collectives, until they make up what is sent too much."""
        excess = self.excess
        for c in sorted(self.compiled, key=lambda c: (-_of_collective(c), c.name)):
            if excess <= 0:
                return
            excess -= _of_collective(c)
            yield Finding(what=tensor_of(c), promised=self._instead(c), found=f"XLA added {_told(c, self.sizes)}")

    @cached_property
    def tensors(self) -> set[str]:
        """Return the tensors that the collectives carry."""
        return {name for p in self.expected for name in _written(p)} | {tensor_of(c) for c in self.compiled}

    def _instead(self, c: Collective) -> str:
        """Return the priced collectives of the tensor, or else of its component."""
        ours = [p for p in self.expected if tensor_of(c) in _written(p)]
        ours = ours or [p for p in self.expected if _component(p) == _component_of(c)]
        return "; ".join(_priced(p, self.sizes) for p in ours) or "nothing"


def _joined(groups: Sequence[_Unmatched], rest: _Unmatched) -> list[_Unmatched]:
    """Join what is left with groups of the same tensors: together they may be one reduction in two parts."""
    near = [group for group in groups if group.tensors & rest.tensors]
    both = _Unmatched(tuple(one for group in (*near, rest) for one in group.items), rest.sizes)
    if rest.excess > 0 >= both.excess:
        return [*(group for group in groups if group not in near), both]
    return [*groups, rest]


@dataclass(frozen=True)
class _Part:
    """The outcome of one part of the step."""

    outcome: CollectiveDiff
    sizes: Sizes

    @cached_property
    def _kept(self) -> list[Rewrite]:
        """Rewrites that at most double what is sent."""
        return [r for r in self.outcome.rewrites if r.extra_bytes <= _promised_bytes(r.expected, self.sizes)]

    @cached_property
    def _lots(self) -> list[_Unmatched]:
        """Return the groups that match by themselves and, last, all that is left."""
        left: list[Difference | Rewrite] = [*self.outcome.differences]
        left += [r for r in self.outcome.rewrites if r not in self._kept]
        groups: dict[object, list[Difference | Rewrite]] = {}
        for one in left:
            groups.setdefault(_about(one, self.sizes), []).append(one)
        matches = [_Unmatched(tuple(items), self.sizes) for items in groups.values()]
        well = [match for match in matches if match.expected and match.compiled and match.excess <= 0]
        rest = tuple(one for match in matches if match not in well for one in match.items)
        return _joined(well, _Unmatched(rest, self.sizes))

    def findings(self) -> Iterator[Finding]:
        """Yield a finding for bytes that are sent beyond the priced ones."""
        return self._lots[-1].findings()

    def notes(self) -> Iterator[str]:
        """Rewrites, and what comes instead of what was priced, where it is not too much."""
        yield from map(_rewrite, self._kept)
        yield from (match.note() for match in self._lots if match.excess <= 0 and (match.compiled or match.expected))


def _about(one: Difference | Rewrite, sizes: Sizes) -> tuple[str, tuple[str, ...] | None]:
    """Component and axes."""
    if one.expected:
        return _component(one.expected[0]), one.expected[0].axes
    return _component_of(one.compiled[0]), one.compiled[0].axes(sizes)


def _component(p: ExpectedCollective) -> str:
    return p.text.split(":")[0]


def _component_of(c: Collective) -> str:
    return tensor_of(c).split("/")[0]


def _written(p: ExpectedCollective) -> set[str]:
    """The tensors that a priced step writes, with their component."""
    return {f"{_component(p)}/{name}" for name in re.findall(r"(\w+)\[", p.text.partition(" = ")[0])}


def _counted(compiled: Sequence[Collective], sizes: Sizes) -> str:
    alike = Counter((tensor_of(c), _short(c, sizes)) for c in compiled)
    return (
        "; ".join(f"{f'{n} x ' if n > 1 else ''}{what} in {where}" for (where, what), n in alike.items()) or "nothing"
    )


def _short(c: Collective, sizes: Sizes) -> str:
    axes, kinds = c.axes(sizes), "+".join(dict.fromkeys(p.dtype for p in c.parts))
    return f"{c.kind} over {''.join(axes) if axes else 'no mesh axes'} of {c.elements} {kinds}, {c.runs} times"


def _told(c: Collective, sizes: Sizes) -> str:
    return f"{_short(c, sizes)} ({_mb(_of_collective(c))}; op {c.op_name or c.name})"


def _priced(p: ExpectedCollective, sizes: Sizes) -> str:
    return (
        f"{p.kind} over {''.join(p.axes)} of {p.elements:.0f}, {p.runs} times ({_mb(_of_promise(p, sizes))}; {p.text})"
    )


def _rewrite(r: Rewrite) -> str:
    did = ", ".join(dict.fromkeys(f"{c.kind} in {tensor_of(c)}" for c in r.compiled))
    return f"{r.kind}: {'; '.join(p.text for p in r.expected)} runs as {did}, {_mb(r.extra_bytes)}"


def _mb(nbytes: float) -> str:
    return f"{nbytes / 1e6:+.6g} MB per device and step"
