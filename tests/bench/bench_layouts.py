"""Benchmark: layouts of one model, timed: what was priced against what was measured, and whether the order is the same.

`python tests/bench/bench_layouts.py [--devices cpu] [--count 8] [--phase prefill] [--layouts 16] [--chip-file FILE]`
calibrates the devices that are here, prices layouts on that chip, runs each, and prints a Markdown table. Forced host
devices share the host's cores, so this says how well the prices order layouts on such a host, and no more.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from executor.calibrate.calibrate import PLATFORMS, calibrate, device_mesh
from executor.clock import REPEATS
from executor.devices import Unavailable
from executor.levels.shrink import F32
from executor.levels.timing import label, measure, present_devices
from executor.loaded import load
from mesh.chips import read_chip
from mesh.errors import InputError
from mesh.slices import Slice, parse_slice
from planner.plan.plan import Plan
from planner.query.query import Query
from planner.search.candidate import Candidate, price_candidate
from planner.search.problem import make_problem
from planner.search.search import search
from strategies.components import IDLE, Component, components
from strategies.models.models import Attention, LayerGroup, Mlp, Model
from strategies.models.workload import Workload

HOST_MODEL = Model(
    name="host-80m",
    D=1024,
    V=8192,
    tied=False,
    groups=(LayerGroup(count=4, attention=Attention(N=16, K=8, H=64), mlp=Mlp(F=4096, gated=True)),),
    source="made up: 80 million parameters, more than a host's caches hold and little enough for its memory",
)


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One layout: the seconds that were priced and those that were measured."""

    layout: str
    priced_s: float
    measured_s: float

    @property
    def ratio(self) -> float:
        """Measured over priced."""
        return self.measured_s / self.priced_s


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Layouts of one model, best price first."""

    what: str
    rows: tuple[Timed, ...]

    @property
    def rank_correlation(self) -> float:
        """Spearman's: 1 where the prices order the layouts as their times do."""
        return float(spearmanr([r.priced_s for r in self.rows], [r.measured_s for r in self.rows]).statistic)

    @property
    def median_ratio(self) -> float:
        """By what all prices are off together."""
        return statistics.median(r.ratio for r in self.rows)

    @property
    def median_error(self) -> float:
        """Of measured over priced, less 1."""
        return statistics.median(abs(r.ratio - 1) for r in self.rows)

    @property
    def fastest_at(self) -> int:
        """The place, from 1, by price of the layout that ran fastest."""
        return min(range(len(self.rows)), key=lambda i: self.rows[i].measured_s) + 1

    def text(self) -> str:
        """A Markdown table, and what the numbers say together."""
        lines = [self.what, "", "| layout | priced ms | measured ms | error |", "|---|--:|--:|--:|"]
        lines += [
            f"| {r.layout} | {r.priced_s * 1e3:.2f} | {r.measured_s * 1e3:.2f} | {r.ratio - 1:+.0%} |"
            for r in self.rows
        ]
        best = self.rows[0].measured_s / min(r.measured_s for r in self.rows)
        lines += [
            "",
            f"{len(self.rows)} layouts: Spearman rank correlation {self.rank_correlation:.3f}; error: median "
            f"{self.median_error:.0%}; measured over priced: median {self.median_ratio:.2f}. The fastest layout is "
            f"number {self.fastest_at} by price; the first by price takes {best:.2f} x its time.",
        ]
        return "\n".join(lines)


def compare_layouts(
    slice_: Slice,
    model: Model,
    work: Workload,
    *,
    layouts: int = 16,
    repeats: int = REPEATS,
    progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Time layouts of a model that lie apart in price, the best one among them, on the devices of the slice's chip."""
    if layouts < 2:
        raise InputError(f"--layouts {layouts}: expected at least 2 to compare")
    rows = []
    for plan in spread(layouts_of(slice_, model, work), layouts):
        progress(label(plan))
        loaded = load(plan, chip=slice_.chip)
        measured_s = measure(loaded, present_devices(loaded), repeats=repeats)
        rows.append(Timed(layout=label(plan), priced_s=plan.cost.step_s, measured_s=measured_s))
    dtypes = f"{work.dtypes.weights} weights, {work.dtypes.compute} matmuls"
    what = f"{model.name}, {work.phase}, batch {work.batches[0]}, context {work.context}, {dtypes}, on {slice_.name}"
    return Comparison(what=f"{what}, median of {repeats}", rows=tuple(rows))


def layouts_of(slice_: Slice, model: Model, work: Workload) -> list[Plan]:
    """The best layout for every pair of roles that attention and the MLP can have on the whole slice, by price."""
    request, found = Query(model=model, slices=[slice_], work=work), dict[str, Plan]()
    for fixed in _pairs(components(model, work), slice_):
        one = replace(request, fixed=fixed)
        problem = make_problem(one, slice_)
        for choice in search(problem, 2).choices.get(work.batches[0], ()):
            plan = price_candidate(Candidate(slice_, problem, choice), one)
            found.setdefault(label(plan), plan)
    return sorted(found.values(), key=lambda p: (p.cost.step_s, label(p)))


def _pairs(parts: Sequence[Component], slice_: Slice) -> Iterator[dict[str, dict[str, frozenset[str]]]]:
    yield {}
    first, second = [c for c in parts if c.kind != "vocab"][:2]
    axes = [axis.name for axis in slice_.axes if axis.size > 1]
    for a in _roles(first) if axes else ():
        for b in _roles(second):
            yield {c.name: dict.fromkeys(axes, frozenset({role})) for c, role in ((first, a), (second, b))}


def _roles(component: Component) -> list[str]:
    return sorted({role.name for body in component.bodies for role in body.parts[0].program.roles} | {IDLE})


def spread(plans: Sequence[Plan], count: int) -> list[Plan]:
    """The best plan, the worst, and those between that are nearest to even steps in price."""
    if len(plans) <= count:
        return list(plans)
    left, chosen = list(plans), []
    low, high = np.log(plans[0].cost.step_s), np.log(plans[-1].cost.step_s)
    for goal in np.linspace(low, high, count):
        chosen.append(left.pop(min(range(len(left)), key=lambda i: abs(np.log(left[i].cost.step_s) - goal))))
    return sorted(chosen, key=lambda p: (p.cost.step_s, label(p)))


def main(words: Sequence[str] | None = None) -> None:
    """Calibrate the devices that are here, or take a chip file; compare layouts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", choices=PLATFORMS, default="cpu")
    parser.add_argument("--count", type=int)
    parser.add_argument("--phase", choices=("decode", "prefill"), default="decode")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--layouts", type=int, default=16)
    parser.add_argument("--chip-file", type=Path, help="what `meshwright calibrate` wrote, instead of measuring anew")
    given = parser.parse_args(words)
    try:
        chip = read_chip(given.chip_file) if given.chip_file else calibrate(given.devices, count=given.count).chip
        count = given.count or int(chip.machines[0].dims[-1])
        device_mesh(chip.kind, count)  # makes them, where they are the host's
        work = Workload(phase=given.phase, batches=(given.batch,), context=given.context, dtypes=F32)
        slice_ = parse_slice(f"{chip.name}:{count}", chip)
        say = lambda text: print(f"timing {text}", file=sys.stderr, flush=True)  # noqa: E731
        print(compare_layouts(slice_, HOST_MODEL, work, layouts=given.layouts, progress=say).text())
    except (InputError, Unavailable) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
