"""`explain`: a plan's steps with real sizes, and its tables."""

import math

import msgspec
import pytest
from helpers.planned import planned

from mesh.errors import InputError
from meshwright.reports.explain import check_plan, dim_sizes, explanation, on_one_device
from meshwright.reports.text import Lines, TextTable, render
from planner.plan.plan import Plan
from strategies.notation import parse_tensor


@pytest.fixture(scope="module")
def plan() -> Plan:
    """The best plan of Llama-3.1-70B at the issue's example."""
    return planned("llama-3.1-70b", "v5e:4x4", batch=(64,), weights="int8", kv="int8", top=1).plans[0]


KINDS = [("mixtral-8x7b", "decode"), ("gpt-oss-20b", "prefill"), ("palm-8b", "decode")]


def tables(plan: Plan) -> dict[str, TextTable]:
    """The tables of the explanation, by the start of their heading."""
    return {b.heading.split(" (")[0]: b for b in explanation(plan) if isinstance(b, TextTable) and b.heading}


def test_sizes_on_one_device() -> None:
    """A dim is divided by the sizes of all axes that cut it; unknown dims keep their names."""
    tensor = parse_tensor("Q[B_YZ, N_X, H, W]")
    sizes = {"B": 64, "N": 64, "H": 128}
    assert on_one_device(tensor, sizes, {"X": 4, "Y": 2, "Z": 2}) == "Q[16, 16, 128, W]"


def test_every_step_is_there_with_its_numbers(plan: Plan) -> None:
    """Each step's line has its text, FLOPs, bytes and time; they add up to the estimate."""
    rows = [row for name, table in tables(plan).items() if name in ("attention", "mlp") for row in table.rows]
    steps = [step for step in plan.cost.steps if step.component in ("attention", "mlp")]
    texts = [row[1] for row in rows if row[0] != "all"]
    assert texts == [step.text for step in steps]
    wanted = {step.text: step for step in steps}
    for row in rows:
        if row[0] != "all" and row[6] != "-":
            assert float(row[6].replace(",", "")) == pytest.approx(wanted[row[1]].seconds * 1e6, rel=1e-3)


def test_attend_has_the_cache_of_one_device(plan: Plan) -> None:
    """The result of Append is the cache's shard: batch, context, KV heads and head dim on one device."""
    row = next(row for row in tables(plan)["attention"].rows if "Append(Kc" in row[1])
    sizes = math.prod(int(size) for size in row[2].removeprefix("Kc[").removesuffix("]").split(", "))
    assert 2 * 80 * sizes == plan.memory.kv_bytes


def test_subtotals_add_up(plan: Plan) -> None:
    """The components' times are those of the plan, and their shares add up to 100%."""
    table = tables(plan)["Time of all layers"]
    *parts, total = table.rows
    assert [row[0] for row in parts] == ["vocab", "attention", "mlp"]
    assert float(total[7]) == pytest.approx(plan.cost.step_s * 1e3, rel=1e-3)
    assert sum(float(row[8].rstrip("%")) for row in parts) == pytest.approx(100, abs=0.2)


def test_memory_specs_and_constants_are_listed(plan: Plan) -> None:
    """Memory in GB of usable HBM, a line per tensor, and every constant with its source."""
    found = tables(plan)
    memory = {row[0]: row[1] for row in found["Memory per device"].rows}
    assert float(memory["KV cache"]) == pytest.approx(plan.memory.kv_bytes / 1e9, rel=1e-3)
    assert [row[0] for row in found["Weights and caches"].rows] == list(plan.specs)
    assert [row[0] for row in found["Activations"].rows] == list(plan.activation_specs)
    assert all(row[3] == "no" and row[4] for row in found["Constants"].rows)


def test_padded_sizes_are_used(plan: Plan) -> None:
    """Padded dims and batch replace those of the model."""
    padded = msgspec.structs.replace(plan, padded={"mlp/F": (28672, 28800)}, padded_batch=72)
    layout = next(lay for lay in plan.layouts if lay.component == "mlp")
    sizes = dim_sizes(padded, layout)
    assert (sizes["F"], sizes["B"], dim_sizes(plan, layout)["F"]) == (28800, 72, 28672)


@pytest.mark.parametrize(("name", "phase"), KINDS)
def test_every_dim_of_every_kind_of_layer_has_a_size(name: str, phase: str) -> None:
    """In MoE, windowed and parallel-block models, no dim of a step is left without a number."""
    best = planned(name, "v5p:2x2x2", phase=phase, batch=(8,), context=2048, top=1).plans[0]
    for block in explanation(best):
        if isinstance(block, TextTable) and len(block.headers) > 2 and block.headers[1] == "step":
            for row in block.rows:
                assert not [c for c in row[2].replace("]", "[").split("[")[1::2] if any(map(str.isalpha, c))], row


def test_markdown_keeps_the_notation(plan: Plan) -> None:
    """In Markdown, steps are code: their stars and underscores are not read as emphasis."""
    text = render(explanation(plan), "markdown")
    assert any(f"| `{step.text}`" in text for step in plan.cost.steps if step.op == "Einsum")


def test_units_are_labelled(plan: Plan) -> None:
    """The legend says what GFLOP, MB and GB are and what the bytes of a collective are."""
    legend = [line for block in explanation(plan) if isinstance(block, Lines) for line in block.lines]
    assert any("MB = 1e6 and GB = 1e9 bytes" in line for line in legend)


def broken(plan: Plan, **changes: object) -> str:
    """What is said of a plan with these changes."""
    with pytest.raises(InputError) as caught:
        check_plan(msgspec.structs.replace(plan, **changes))
    return str(caught.value)


def test_edited_plans_are_refused(plan: Plan) -> None:
    """Parts of a plan that do not fit together are named."""
    assert broken(plan, devices=17) == "the plan is not valid: its mesh has 16 devices, the plan says 17"
    assert "a step is of 'vocab', which has no layout" in broken(plan, layouts=plan.layouts[:2])
    mesh = msgspec.structs.replace(plan.mesh, axis_names=("X",))
    assert "must be equally many" in broken(plan, mesh=mesh)
    layout = msgspec.structs.replace(plan.layouts[0], groups=(7,))
    assert broken(plan, layouts=(layout, *plan.layouts[1:])) == "the plan is not valid: the model has no layer group 7"
