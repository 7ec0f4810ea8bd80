"""Tampered plans, prices and programs are caught, each by the level that should."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import pytest
from helpers import drawn, tampering
from helpers.levels import check_plan_file
from msgspec.structs import replace as changed

import meshwright
import strategies
from executor.levels.common import host_mesh
from executor.levels.host_collectives import check_collectives, host_collectives
from executor.levels.integrity import recomputed
from executor.levels.numerics import numerics, run_numerics
from executor.loaded import Loaded, load
from executor.run.engine import engine_of
from planner.plan.plan import Plan
from strategies.layoutfile import parse_layout
from strategies.notation import Program

pytestmark = pytest.mark.skipif(
    len(jax.devices()) < 8, reason="needs 8 host devices: XLA_FLAGS=--xla_force_host_platform_device_count=8"
)


TEXT = (Path(strategies.__file__).parent / "programs" / "decode.layout").read_text("utf-8")


@cache
def searched() -> Plan:
    """The best plan of Llama-3.1-8B's decoding on v5e:4x4; roles differ, and so do the axes' pieces."""
    fix = {"mlp": {"X": "F", "Y": "F"}, "attention": {"X": "N+K", "Y": "D+B"}}
    plans = meshwright.plan("llama-3.1-8b", "v5e:4x4", phase="decode", batch=[32], context=2048, fix=fix,
        constants="data-sheet").plans  # fmt: skip
    return plans[0]


@cache
def small() -> Plan:
    """A plan that runs as it is: 2D attention and MLP."""
    roles = {"attention": ("attention", ("D+-", "N+K")), "mlp": ("mlp", ("D", "F")), "vocab": ("unembed", ("D", "V"))}
    group = drawn.MODELS["gqa"].groups[0]
    model = changed(drawn.MODELS["gqa"], groups=(changed(group, count=2),))
    return drawn.priced(model, "decode", (2, 2), ("D", "D"), roles)  # type: ignore[no-any-return]


@cache
def loaded() -> Loaded:
    """The small plan, loaded."""
    return load(small())


@cache
def own() -> Any:
    """The engine of the small plan as it should be."""
    return engine_of(loaded(), host_mesh(loaded()))


def levels(engine: Any) -> dict[str, Any]:
    """Numerics and collectives of the small plan on host devices."""
    mesh = host_mesh(loaded())
    found = [f(loaded(), mesh, "manual", lambda loaded, mesh: engine) for f in (check_collectives, run_numerics)]
    return {level.level: level for level in found}


def test_what_nobody_tampered_with_passes() -> None:
    """So every failure below is the mutation's."""
    assert check_plan_file(searched()).status == "passed", check_plan_file(searched()).findings
    assert {level.status for level in levels(own()).values()} == {"passed"}


def test_there_are_at_least_25_mutations() -> None:
    """40 of plan files, and more of prices, engines and programs."""
    assert len(tampering.PLANS) >= 25
    assert sum(len(t) for t in (tampering.PRICES, tampering.ENGINES, tampering.ILLEGAL, tampering.WRONG)) >= 20


@pytest.mark.parametrize("name", tampering.PLANS)
def test_an_edited_plan_file_is_caught_before_anything_runs(name: str) -> None:
    """Level `plan` computes everything that follows from the layouts again."""
    edited = tampering.PLANS[name](searched())
    assert edited != searched()
    level = check_plan_file(edited)
    assert level.status == "failed"
    assert level.findings


@pytest.mark.parametrize("name", tampering.PRICES)
def test_an_edited_price_is_caught_by_the_compiled_program(name: str) -> None:
    """The level `collectives` alone: the numbers that come out are right."""
    edited = replace(loaded(), plan=tampering.PRICES[name](small()))
    level = check_collectives(edited, host_mesh(edited), "manual", lambda loaded, mesh: own())
    assert level.status == "failed"
    assert all(f.promised != f.found for f in level.findings)


@pytest.mark.parametrize("name", tampering.ENGINES)
def test_another_program_than_the_plan_says_is_caught(name: str) -> None:
    """By numbers, by what it communicates, or by both, as the table says."""
    caught, change = tampering.ENGINES[name]
    found = levels(change(own()))
    assert {n for n, level in found.items() if level.status == "failed"} == set(caught), found


def program(name: str, before: str, after: str) -> tuple[Program, Program]:
    """A built-in decode program under another name, as it is and edited."""
    (text,) = re.findall(rf"^program {name}\n.*?(?=^#|^program|\Z)", TEXT, re.S | re.M)
    text = text.replace(f"program {name}", f"program {name}-of-mine")
    assert before in text
    return parse_layout(text, "mine")[0], parse_layout(text.replace(before, after), "mine")[0]


def mine(component: str) -> Plan:
    """The searched plan with a component's program under the user's own name."""
    layouts = tuple(
        changed(one, program=f"{component}-of-mine") if one.component == component else one
        for one in searched().layouts
    )
    return changed(searched(), layouts=layouts)


@pytest.mark.parametrize("name", [*tampering.ILLEGAL, *tampering.WRONG])
def test_a_layout_text_edited_after_planning_is_caught(name: str) -> None:
    """Level `plan`: it breaks a rule, or its steps are not those that were priced."""
    component, before, after = (tampering.ILLEGAL | tampering.WRONG)[name]
    right, wrong = program(component, before, after)
    assert check_plan_file(mine(component), (right,)).status == "passed"
    level = check_plan_file(mine(component), (wrong,))
    assert level.status == "failed"
    assert (level.findings[0].what == "layouts") == (name in tampering.ILLEGAL)


@pytest.mark.parametrize("name", tampering.WRONG)
def test_a_legal_program_that_computes_something_else_is_caught_by_numbers_only(name: str) -> None:
    """The plan was made with it, so that what is priced is what runs."""
    component, before, after = tampering.WRONG[name]
    _, wrong = program(component, before, after)
    plan = recomputed(load(mine(component), (wrong,)))
    assert check_plan_file(plan, (wrong,)).status == "passed"
    assert host_collectives(load(plan, (wrong,))).status == "passed"
    level = numerics(load(plan, (wrong,)))
    assert level.status == "failed"
    assert level.findings[0].what.startswith("logits of decode step")


def test_devices_in_another_order_are_caught() -> None:
    """Two mesh axes on one torus axis: the near one becomes the far one, and its collectives take longer."""
    plan = meshwright.plan("llama-3.1-70b", "v5e:8x8", phase="decode", batch=[64], context=2048).plans[0]
    assert check_plan_file(plan).status == "passed"
    level = check_plan_file(tampering.swapped_order(plan))
    assert level.status == "failed"
    assert any("bandwidth_s" in f.what for f in level.findings)
