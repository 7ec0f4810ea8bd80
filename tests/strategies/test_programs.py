"""The programs that come with meshwright, and the one of the docs."""

import re
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest

from mesh.pieces import Piece
from mesh.slices import parse_slice
from strategies import residual_program
from strategies.checker import check
from strategies.components import IDLE, Body, CheckedProgram, Component, components
from strategies.layoutfile import FEATURES, builtin_programs, parse_layout, read_layout, specialise
from strategies.models.configs import load_model
from strategies.models.workload import Dtypes, Workload
from strategies.notation import Program
from strategies.primitives import PRIMITIVES
from strategies.readers.axis_sets import masks_of_one
from strategies.readers.cost import Totals, price_steps, speeds
from strategies.readers.fit import fit_part, scope_of
from strategies.readers.rates import Ints, tabulate_rates
from strategies.tables.tables import price_body

DOCS = Path(__file__).parents[2] / "docs"
NOTATION = (DOCS / "reference" / "notation.md").read_text("utf-8")
OWN = (DOCS / "how-to" / "your-own-strategy.md").read_text("utf-8")
EXAMPLE = re.findall(r"```layout\n(.*?)```", OWN, re.S)[0]
PROGRAMS = builtin_programs()
MIXES = [
    frozenset({kind, *rest})
    for kind in ("gated", "plain")
    for count in range(len(FEATURES) - 1)
    for rest in combinations([f for f in FEATURES if f not in ("gated", "plain")], count)
]


def ids(program: Program) -> str:
    """Name of a program in test output."""
    return f"{program.phase}-{program.name}"


@pytest.mark.parametrize("program", PROGRAMS, ids=ids)
def test_a_built_in_program_checks_under_every_mix_of_features(program: Program) -> None:
    """Gated or plain, with or without biases and head norms: each mix is a whole program."""
    for features in MIXES:
        check(specialise(program, features))


def test_there_is_a_program_for_every_component_in_both_phases() -> None:
    """Attention, MLP, MoE, parallel blocks and the vocabulary; prefill attention gathered and as a ring."""
    kinds = {(p.phase, p.component) for p in PROGRAMS}
    assert kinds == set(product(("decode", "prefill"), ("attention", "mlp", "moe", "block", "embed", "unembed")))
    names = {p.name for p in PROGRAMS if (p.phase, p.component) == ("prefill", "attention")}
    assert names == {"attention-gathered-kv", "attention-ring"}


def test_the_primitives_are_those_of_the_design() -> None:
    """The executor runs each of these under the same name."""
    assert set(PRIMITIVES) == {
        *("Einsum", "AllGather", "ReduceScatter", "AllReduce", "AllToAll", "Slice", "Split", "Merge", "Rename"),
        *("Gelu", "Silu", "SwiGLU", "Add", "Bias", "SumSq", "Sum", "Norm", "HeadNorm", "Rope", "Append", "Attend"),
        *("RingAttend", "AttendReduce", "AttendScatter", "TopK", "Dispatch", "Combine", "Lookup", "ArgMax", "Last"),
    }


def test_the_notation_page_names_every_primitive_and_feature() -> None:
    """A new primitive, feature, header line or component gets its line on the page."""
    words = set(re.findall(r"\w+", NOTATION))
    assert set(PRIMITIVES) | set(FEATURES) | {p.component for p in PROGRAMS} <= words


@pytest.mark.parametrize("program", PROGRAMS, ids=ids)
def test_every_role_is_used(program: Program) -> None:
    """A role that no tensor mentions would be idling under another name; only logits of one position have no T."""
    used = {a for s in program.steps for t in (*s.inputs, *s.outputs) for d in t.dims for a in d.axes}
    unused = {role.name for role in program.roles if role.axis not in used}
    assert unused == ({"-+T"} if ids(program) == "prefill-unembed" else set())


@pytest.mark.parametrize("program", PROGRAMS, ids=ids)
def test_every_weight_and_constraint_is_used(program: Program) -> None:
    """The header promises nothing that the body lacks."""
    used = {t.name for s in program.steps for t in (*s.inputs, *s.outputs)}
    assert {*program.weights, *program.cache, *program.constraints} <= used


# The example of the docs.

V5E = parse_slice("v5e:4x4")
RATES = tabulate_rates(V5E, [[Piece(axis=0, stride=1, size=4)], [Piece(axis=1, stride=1, size=4)]])
INT8 = Dtypes(weights="int8", kv="int8")
FAST = speeds(V5E.chip, INT8)
ROLES = [frozenset((*"XYGb", IDLE))] * 2


def mlp(batch: int) -> Component:
    """The MLP of Llama-3.1-70B in int8 with the built-in program and that of the docs."""
    work = Workload(phase="decode", batches=(batch,), context=32, dtypes=INT8)
    return components(load_model("llama-3.1-70b"), work, parse_layout(EXAMPLE, "your-own-strategy.md"))[1]


def test_the_readme_s_program_is_a_file_that_can_be_read(tmp_path: Path) -> None:
    """Written to a file, it parses, checks and joins the built-in programs of its component."""
    file = tmp_path / "mine.layout"
    file.write_text(EXAMPLE, encoding="utf-8")
    (program,) = read_layout(file)
    for features in MIXES:
        check(specialise(program, features))
    assert [body.name for body in mlp(16).bodies] == ["mlp", "mlp-gathered"]


def reshard_s(part: CheckedProgram, owner: Component, pairs: list[str], batch: Ints) -> float:
    """Seconds of reshard whose mesh axes play these pairs; infinite where a dim does not divide."""
    names = {role.name: role.axis for role in part.program.roles}
    playing = {axis: [i for i, pair in enumerate(pairs) if names[pair] == axis] for axis in names.values()}
    masks = masks_of_one(playing, len(pairs))
    found = fit_part(part, owner, RATES, masks, batch)
    total = Totals()
    for cost in price_steps(scope_of(part, found.sizes, masks, RATES, FAST), FAST):
        total.add(cost)
    return float(np.max(total.step_s)) if found.ok.all() else np.inf


def best_s(owner: Component, body: Body, batch: int) -> float:
    """The least seconds of one layer with its reshard, where all layers' MLP weights take at most half of the HBM."""
    batches = np.array([[batch]])
    table = price_body(owner, body, RATES, FAST, batches, ROLES)
    programs = (residual_program.entry("decode"), residual_program.leave("decode"))
    entry, leave = (CheckedProgram(p, check(p)) for p in programs)
    times = []
    fits = table.stored_bytes[:, 0] <= V5E.chip.usable_hbm_bytes_per_device / 2
    for row, step_s in zip(table.rows[fits], table.step_s[fits], strict=True):
        axes = [table.choices[i] for i in row]
        reads = [IDLE if axis == IDLE else body.reads(axis) for axis in axes]
        gives = [IDLE if axis == IDLE else body.gives(axis) for axis in axes]
        for residual in product("DB-", repeat=2):
            before = reshard_s(entry, owner, [cut + read for cut, read in zip(residual, reads, strict=True)], batches)
            after = reshard_s(leave, owner, [give + cut for give, cut in zip(gives, residual, strict=True)], batches)
            times.append(float(step_s.item()) + before + after)
    return min(times)


@pytest.mark.parametrize(("batch", "wins"), [(16, False), (16384, True)])
def test_the_readme_s_program_wins_at_very_large_batches(batch: int, wins: bool) -> None:
    """Moving weights beats moving activations where the batch is larger than F; not in common decode."""
    owner = mlp(batch)
    built_in, own = (best_s(owner, body, batch) for body in owner.bodies)
    assert (own < built_in) is wins
