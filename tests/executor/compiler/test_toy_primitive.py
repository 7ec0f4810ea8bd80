"""A collective that exists in this file only is checked, bound, priced, sized, specified, run and compared.

GatherSum gathers every shard's partial sum and adds them up: an AllReduce that moves n whole arrays.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import meshwright
from executor.levels.host_collectives import host_collectives
from executor.levels.numerics import numerics
from executor.loaded import load
from executor.run.context import Context, arrays_of, untyped
from executor.run.steps import STEPS, Values
from planner.plan.plan import Plan
from strategies.bind import bind
from strategies.checker import check
from strategies.layoutfile import parse_layout, read_layout
from strategies.models.models import Attention, LayerGroup, Mlp, Model
from strategies.notation import LayoutError, Program, Step
from strategies.prices import Comm, Number, Scope, Work
from strategies.primitives import PRIMITIVES, Primitive
from strategies.readers.axis_sets import masks_of_one
from strategies.readers.cost import ArrayScope
from strategies.readers.memory import peak_activation_bytes
from strategies.readers.rates import Rates
from strategies.rules import collectives

TOY = """
program mlp-toy
phase: decode
component: mlp
roles: X=TOY Y=F
pad: F
weights: Wi Wg Wo
constraints: h u a o
requires: X
input: n[B, D_X]
output: o[B, D_X] {U_Y}
body
h[B, F_Y] {U_X} = n[B, D_X] * Wi[D_X, F_Y]
h[B, F_Y] = GatherSum_X(h[B, F_Y] {U_X})
u[B, F_Y] {U_X} = n[B, D_X] * Wg[D_X, F_Y]
u[B, F_Y] = GatherSum_X(u[B, F_Y] {U_X})
a[B, F_Y] = SwiGLU(u[B, F_Y], h[B, F_Y])
o[B, D_X] {U_Y} = a[B, F_Y] * Wo[F_Y, D_X]
"""
MODEL = Model(
    name="toy",
    D=1024,
    V=1024,
    tied=False,
    groups=(LayerGroup(count=2, attention=Attention(N=8, K=8, H=64), mlp=Mlp(F=4096, gated=True)),),
)
BATCH = 16


def price(step: Step, scope: Scope) -> Work:
    """V is what is gathered: every shard's whole array."""
    (partial,) = step.inputs
    return Work(comms=(Comm("AllGather", step.axes, scope.nbytes(partial) * scope.ways(step.axes)),))


def run(step: Step, context: Context, values: Values) -> Values:
    """Its execution."""
    (partial,) = arrays_of(values)
    return (untyped.all_gather(partial, step.axes, axis=0).sum(0),)


RECORD = Primitive(
    rule=collectives.all_reduce,
    options={},
    vanishes=True,
    order=None,
    price=price,
    collectives={"AllGather": 0},
    made="activation",
    reads_ahead=False,
    hides=False,
    slots=False,
    operands="sent",
    reorders=False,
    cuts=False,
    passes_partial=False,
    asks=None,
)


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> Program:
    """The primitive is known while a test runs, and the program that uses it."""
    monkeypatch.setitem(PRIMITIVES, "GatherSum", RECORD)
    monkeypatch.setitem(STEPS, "GatherSum", run)
    return parse_layout(TOY)[0]


def test_it_is_checked(toy: Program) -> None:
    """By its own rule, which names it."""
    check(toy)
    (wrong,) = parse_layout(
        TOY.replace("h[B, F_Y] = GatherSum_X(h[B, F_Y] {U_X})", "h[B, F] = GatherSum_X(h[B, F_Y] {U_X})")
    )
    with pytest.raises(LayoutError, match="line 14: GatherSum: keeps the cut"):
        check(wrong)


def test_it_is_bound_and_vanishes_over_nothing(toy: Program) -> None:
    """Over the mesh axes that play its axis; over none it is no step."""
    ops = [step.op for step in bind(toy, {"X": ("X", "Z"), "Y": ("Y",)}).steps]
    assert ops.count("GatherSum") == 2
    assert "GatherSum" not in [step.op for step in bind(toy, {"Y": ("Y",)}).steps]


def peak_bytes(program: Program) -> float:
    """The most bytes of activations that live at once on a mesh X of 2 and Y of 2."""
    sizes: dict[str, Number] = {"B": BATCH, "D": 1024, "F": 4096}
    widths = {"weight": 2.0, "activation": 2.0}
    bound = bind(program, {"X": ("X",), "Y": ("Y",)})
    rates = Rates(np.array([1, 2, 2, 4]), np.zeros(4, dtype=bool), {}, {})
    scope = ArrayScope(bound, masks_of_one({"X": [0], "Y": [1]}, 2), sizes, rates, widths)
    return float(np.max(peak_activation_bytes(scope)))


def test_its_memory_is_what_its_record_says(toy: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """While u is gathered h, u's partial sum and u live, 16 x 2048 bf16 each; in place u would be there once."""
    moved = BATCH * 2048 * 2
    one_row = BATCH * 512 * 2  # n, which the matmul of u reads
    assert peak_bytes(toy) == 3 * moved
    monkeypatch.setitem(PRIMITIVES, "GatherSum", replace(RECORD, operands="overwritten"))
    assert peak_bytes(toy) == 2 * moved + one_row


@pytest.fixture
def plan(tmp_path: Path) -> tuple[Plan, Path]:
    """A plan whose MLP is the toy program on one axis of a 2x2 slice."""
    path = tmp_path / "toy.layout"
    path.write_text(TOY)
    found = meshwright.plan(
        MODEL,
        "v5e:2x2",
        batch=BATCH,
        context=32,
        programs=[path],
        fix={"mlp": {"X": "TOY", "Y": "F"}},
        workers=1,
    )
    return found.plans[0], path


def test_it_is_priced_and_sized_and_has_specs(plan: tuple[Plan, Path], toy: Program) -> None:
    """16 x 2048 bf16 of each of 2 shards; while it runs its operand lives, too; its result is stated."""
    best = plan[0]
    (mlp,) = (one for one in best.layouts if one.component == "mlp")
    assert mlp.program == "mlp-toy"
    steps = [s for s in best.cost.steps if s.op == "GatherSum"]
    moved = BATCH * 2048 * 2
    assert [(c.kind, c.axes, c.bytes) for s in steps for c in s.comms] == 2 * [("AllGather", ("a",), 2 * moved)]
    assert all(s.seconds > 0 for s in steps)
    assert best.specs["mlp/Wi"].axes == (("a",), ("b",))
    assert best.activation_specs["0/mlp/h"].axes == ((), ("b",))


@pytest.mark.skipif(len(jax.devices()) < 4, reason="needs 4 host devices")
@pytest.mark.slow
def test_it_is_run_and_compared_with_what_was_compiled(plan: tuple[Plan, Path]) -> None:
    """The plan's logits are the reference's, and the compiled program gathers what was priced."""
    best, path = plan
    loaded = load(best, read_layout(path))
    for level in (numerics(loaded), host_collectives(loaded)):
        assert level.status == "passed", level.findings


def test_a_record_that_leaves_a_field_out_or_contradicts_itself_is_an_error() -> None:
    """When it is written, not when something is priced."""
    given: dict[str, Any] = {f.name: getattr(RECORD, f.name) for f in fields(RECORD)}
    for name in given:
        with pytest.raises(TypeError, match=name):
            Primitive(**{key: value for key, value in given.items() if key != name})
    for wrong, message in (
        ({"collectives": {"Broadcast": 0}}, "asks for Broadcast"),
        ({"collectives": {}}, "without collectives"),
        ({"cuts": True}, "moves nothing"),
    ):
        with pytest.raises(ValueError, match=message):
            Primitive(**(given | wrong))


def test_a_price_that_asks_for_a_kind_that_its_record_lacks_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is never priced silently."""
    monkeypatch.setitem(PRIMITIVES, "GatherSum", replace(RECORD, collectives={"AllReduce": 0}))
    path = tmp_path / "toy.layout"
    path.write_text(TOY)
    with pytest.raises(ValueError, match="GatherSum asks for a collective that its primitive lacks: AllGather"):
        meshwright.plan(MODEL, "v5e:2x2", batch=BATCH, programs=[path], fix={"mlp": {"X": "TOY"}}, workers=1)
