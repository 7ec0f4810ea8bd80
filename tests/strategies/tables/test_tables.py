"""Arrays of layouts against single ones, and programs with roles against the same on mesh axes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.pieces import Piece
from mesh.slices import parse_slice
from strategies.bind import bind
from strategies.checker import check
from strategies.components import Body, CheckedProgram, Component, components
from strategies.models.configs import load_model
from strategies.models.workload import Dtypes, Workload
from strategies.readers.axis_sets import masks_of_one
from strategies.readers.cost import ArrayScope, Totals, price_steps, speeds
from strategies.readers.fit import fit_part, scope_of
from strategies.readers.memory import cache_bytes, peak_activation_bytes, weight_bytes
from strategies.readers.rates import Ints, tabulate_rates
from strategies.tables.assignments import masks_of
from strategies.tables.tables import price_body

V5P = parse_slice("v5p:4x4x4")
AXES = "XYZ"
RATES = tabulate_rates(V5P, [[Piece(axis=i, stride=1, size=4)] for i in range(3)])
MASKS = masks_of_one({axis: (i,) for i, axis in enumerate(AXES)}, len(AXES))
MODELS = ("llama-3.1-8b", "qwen3-30b-a3b", "palm-8b", "qwen2.5-7b")
BODIES = [
    (c, body, phase)
    for phase in ("decode", "prefill")
    for name in MODELS
    for c in components(
        load_model(name), Workload(phase=phase, batches=(64,), context=4096, dtypes=Dtypes(weights="int8"))
    )
    for body in c.bodies
]
FAST = speeds(V5P.chip, Dtypes(weights="int8"))


def figures(over: ArrayScope) -> list[float]:
    """Everything that the search reads off a program: seconds and bytes."""
    total, costs = Totals(), list(price_steps(over, FAST))
    for cost in costs:
        total.add(cost)
    sums = [sum(np.max(getattr(c, name)) for c in costs) for name in ("flops_s", "hbm_s")]
    bandwidth_s = sum(np.max(comm.bandwidth_s) for c in costs for comm in c.comms)
    numbers = (total.roof_s, *sums, bandwidth_s, total.comm_s, weight_bytes(over))
    return [float(np.max(n)) for n in (*numbers, cache_bytes(over), peak_activation_bytes(over))]


@settings(max_examples=200)
@given(st.sampled_from(BODIES), st.lists(st.integers(0, 99), min_size=3, max_size=3))
def test_a_bound_program_costs_what_its_roles_cost(case: tuple[Component, Body, str], picks: list[int]) -> None:
    """The text on mesh axes, priced alone, equals the text with roles, priced with masks: seconds, bytes and peak."""
    owner, body, _ = case
    choices = (*body.axes, "-")
    row = np.array([[pick % len(choices) for pick in picks]], dtype=np.int8)
    masks = masks_of(row, choices)
    playing = {c: tuple(AXES[i] for i in range(3) if row[0, i] == n) for n, c in enumerate(choices) if c != "-"}
    for part in body.parts:
        found = fit_part(part, owner, RATES, masks, np.array([[64]]))
        roles = scope_of(part, found.sizes, masks, RATES, FAST)
        if found.ok.all():
            bound = bind(part.program, playing)
            check(bound)
            alone = ArrayScope(bound, MASKS, roles.sizes, RATES, FAST.widths)
            assert figures(alone) == pytest.approx(figures(roles), rel=1e-12)


@pytest.mark.parametrize("kind", ["attention", "mlp", "moe", "block", "vocab"])
def test_a_table_s_cells_equal_single_layouts(kind: str) -> None:
    """Every 37th row of a body's table, at each of three batches, is what that layout costs priced alone."""
    owner, body, _ = next(case for case in BODIES if case[0].kind == kind and case[2] == "decode")
    batches: Ints = np.array([[16, 64, 256]])
    table = price_body(owner, body, RATES, FAST, batches, [frozenset((*body.axes, "-"))] * 3)
    assert table.ok.any(axis=1).all()
    peak_bytes = table.peak_bytes(np.arange(len(table.rows)), np.arange(3))
    for number in range(0, len(table.rows), 37):
        for column, batch in enumerate(batches[0]):
            if table.ok[number, column]:
                masks = masks_of(table.rows[number : number + 1], table.choices)
                found = [figures_of(part, owner, masks, int(batch)) for part in body.parts]
                assert table.step_s[number, column] == pytest.approx(sum(f[0] + f[4] for f in found))
                assert peak_bytes[number, column] == pytest.approx(max(f[7] for f in found))


def figures_of(part: CheckedProgram, owner: Component, masks: dict[str, Ints], batch: int) -> list[float]:
    """The figures of one part of one layout at one batch."""
    sizes = fit_part(part, owner, RATES, masks, np.array([[batch]])).sizes
    return figures(scope_of(part, sizes, masks, RATES, FAST))


def test_a_padded_cache_takes_the_memory_of_its_padding() -> None:
    """14 keys over 4 ways are held as 16: 4 of them on each device, not 3.5."""
    work = Workload(phase="decode", batches=(8,), context=14, dtypes=Dtypes())
    owner = next(c for c in components(load_model("llama-3.1-8b"), work) if c.kind == "attention")
    (part,) = owner.bodies[0].parts
    masks = masks_of_one({axis: [0] if axis == "W" else [] for axis in owner.bodies[0].axes}, 3)
    found = fit_part(part, owner, RATES, masks, np.array([[8]]))
    assert int(np.max(found.sizes["S"])) == 16
    over = scope_of(part, found.sizes, masks, RATES, speeds(V5P.chip, Dtypes()))
    assert float(np.max(cache_bytes(over))) == 2 * 8 * 4 * 8 * 128 * 2  # K and V, [B, S/4, K, H] in bf16
