"""Steps priced once for all assignments that they cannot tell apart."""

from __future__ import annotations

import numpy as np
import pytest

from mesh.slices import parse_slice
from planner.search.meshes import meshes
from strategies.components import IDLE, Body, Component, components
from strategies.models.configs import load_model
from strategies.models.workload import Dtypes, Workload
from strategies.readers.cost import Totals, price_steps, speeds
from strategies.readers.fit import fit_part, scope_of
from strategies.readers.memory import peak_activation_bytes
from strategies.readers.rates import tabulate_rates
from strategies.tables.assignments import enumerate_rows, role_sets_of
from strategies.tables.dedup import peak_shared, price_shared, step_groups

SLICE = parse_slice("v5p:4x4x12")
CASES = [
    pytest.param(component, body, id=f"{name}-{phase}-{component.name}-{body.name}")
    for name in ("llama-3.1-70b", "qwen3-30b-a3b", "palm-540b", "gpt-oss-120b")
    for phase in ("decode", "prefill")
    for component in components(
        load_model(name), Workload(phase=phase, batches=(1,), context=4096, dtypes=Dtypes(weights="int8"))
    )
    for body in component.bodies
]
FIELDS = ("roof_s", "comm_s", "behind_s", "wait_s", "spare_s")


@pytest.mark.parametrize(("component", "body"), CASES)
def test_shared_prices_are_those_of_every_row_alone(component: Component, body: Body) -> None:
    """Totals of every possible assignment and batch equal those that adding up its own steps gives."""
    mesh = meshes(SLICE)[0]
    rates, fast = tabulate_rates(SLICE, [[piece] for piece in mesh]), speeds(SLICE.chip, Dtypes(weights="int8"))
    choices = (*body.axes, IDLE)
    rows = enumerate_rows(len(choices), len(mesh))[:: 1 + len(choices) // 5]
    plays, batches = role_sets_of(rows, choices), np.array([[1, 12, 64]])
    for part in body.parts:
        found = fit_part(part, component, rates, plays.masks, batches)
        scope = scope_of(part, found.sizes, plays.masks, rates, fast)
        shared, alone = Totals(), Totals()
        price_shared(scope, part.needs, plays, fast, shared)
        for cost in price_steps(scope, fast):
            alone.add(cost)
        assert found.ok.any()
        every = np.arange(len(rows))
        peaks = (peak_shared(scope, part.needs, plays, every), peak_activation_bytes(scope))
        ours, theirs = (np.broadcast_to(peak, found.ok.shape)[found.ok] for peak in peaks)
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, err_msg="peak")
        for field in FIELDS:
            ours, theirs = (np.broadcast_to(getattr(t, field), found.ok.shape)[found.ok] for t in (shared, alone))
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, err_msg=field)


@pytest.mark.parametrize(("component", "body"), CASES)
def test_every_step_is_in_one_group(component: Component, body: Body) -> None:
    """Groups hold each step of the program once."""
    for part in body.parts:
        steps = [step for _, group in step_groups(part.program, part.needs) for step in group]
        assert sorted(map(str, steps)) == sorted(map(str, part.program.steps))
