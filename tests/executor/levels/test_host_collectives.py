"""Compiled for host devices, a plan's step communicates as was priced; differences are told by step and numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import pytest
from helpers import drawn
from helpers.planned import planned
from msgspec.structs import replace as changed

from executor.devices import Unavailable
from executor.levels.common import capacity_factor, host_mesh
from executor.levels.host_collectives import check_collectives, host_collectives, judge_program
from executor.levels.shrink import shrink
from executor.loaded import load
from executor.run.engine import engine_of
from mesh.slices import parse_slice

pytestmark = pytest.mark.skipif(
    len(jax.devices()) < 8, reason="needs 8 host devices: XLA_FLAGS=--xla_force_host_platform_device_count=8"
)


@pytest.mark.parametrize(
    ("model", "slice_name", "phase"),
    [
        ("llama-3.1-70b", "v5e:4x4", "decode"),
        pytest.param("qwen3-30b-a3b", "v5e:4x4", "decode", marks=pytest.mark.slow),
        pytest.param("palm-540b", "v4:4x4x4", "prefill", marks=pytest.mark.slow),
    ],
)
def test_a_searched_plan_of_a_real_model_passes(model: str, slice_name: str, phase: str) -> None:
    """In its own bf16, of which the CPU makes float32: said in a note, with the number of priced collectives."""
    (plan, *_) = planned(model, slice_name, phase=phase, batch=(32,), context=2048).plans
    level = host_collectives(load(plan))
    assert (level.status, level.level, level.mode) == ("passed", "collectives", "manual"), level.findings
    assert level.notes[0].startswith("priced: ")
    assert level.notes[-1].endswith(" Widened")


def test_a_plan_on_one_device_promises_no_collective() -> None:
    """That there is none is checked, too."""
    (plan, *_) = planned("llama-3.1-8b", "v6e:1x1", phase="decode", batch=(1,), context=128).plans
    level = host_collectives(load(plan))
    assert (level.status, level.checked, level.notes) == ("passed", 1, ("priced: no collective",))


def test_a_missing_and_an_extra_collective_are_told() -> None:
    """A price without one collective, and a program without any."""
    plan = drawn.draw(2, "mha", "decode", (2, 2, 2))
    loaded = load(plan)
    mesh = host_mesh(loaded)
    run = engine_of(loaded, mesh)
    number = next(n for n, step in enumerate(plan.cost.steps) if step.op == "ArgMax" and step.comms)
    steps = list(plan.cost.steps)
    steps[number] = changed(steps[number], comms=())
    cheap = changed(plan, cost=changed(plan.cost, steps=tuple(steps)))
    level = check_collectives(replace(loaded, plan=cheap), mesh, "manual", lambda loaded, mesh: run)
    assert level.status == "failed"
    (finding,) = level.findings
    assert (finding.promised, finding.found.split()[0]) == ("nothing", "AllGather")
    assert "ArgMax" in finding.what
    silent = judge_program(
        plan, mesh, "manual", "HloModule m\n\nENTRY %main () -> f32[] {\n  ROOT %c = f32[] constant(0)\n}\n"
    )
    assert silent.status == "failed"
    assert {f.found for f in silent.findings} == {"nothing"}


def test_a_rewrite_that_is_not_the_cpus_is_a_finding() -> None:
    """An AllGather that runs as an AllReduce, say."""
    plan = drawn.draw(2, "mha", "decode", (2, 2, 2))
    (step,) = [s for s in plan.cost.steps if s.op == "ArgMax"]
    only = changed(plan, cost=changed(plan.cost, steps=(step,)))
    (comm,) = step.comms
    n, groups = int(comm.bytes / 4), _groups(comm.axes)
    text = (
        "HloModule m, num_partitions=8\n\n%add (a: s32[], b: s32[]) -> s32[] {\n  %a = s32[] parameter(0)\n"
        "  %b = s32[] parameter(1)\n  ROOT %c = s32[] add(%a, %b)\n}\n\n"
        f"ENTRY %main (x: s32[{n}]) -> s32[{n}] {{\n  %x = s32[{n}]{{0}} parameter(0)\n"
        f"  ROOT %r = s32[{n}]{{0}} all-reduce(%x), channel_id=1, replica_groups={groups}, to_apply=%add\n}}\n"
    )
    level = judge_program(only, host_mesh(load(plan)), "manual", text)
    assert [f.found.split(":")[0] for f in level.findings] == ["AsAllReduce"], level.findings


def _groups(axes: tuple[str, ...]) -> str:
    import numpy as np

    ids = np.arange(8).reshape(2, 2, 2)
    where = ["abc".index(a) for a in axes]
    ids = np.moveaxis(ids, sorted(where), range(-len(where), 0)).reshape(-1, 2 ** len(where))
    return "{" + ",".join("{" + ",".join(map(str, row)) + "}" for row in ids.tolist()) + "}"


def test_experts_have_the_slots_that_were_priced() -> None:
    """Padded experts hold nothing, but have slots: 16 for 15 make the factor 16/15, just below."""
    plan = drawn.draw(0, "moe", "prefill", (2, 2, 2))
    assert capacity_factor(plan) == pytest.approx(1)
    padded = changed(plan, padded={"moe/E": (15, 16), "moe/F": (3, 4)})
    assert 16 / 15 * (1 - 1e-6) < capacity_factor(padded) < 16 / 15


def test_a_program_that_does_not_compile_is_a_finding() -> None:
    """The error's first line, not a traceback."""

    def broken(plan: Any, mesh: Any) -> Any:
        raise ValueError("no such thing\nand more")

    plan = drawn.draw(2, "mha", "decode", (2, 2, 2))
    level = check_collectives(load(plan), host_mesh(load(plan)), "manual", broken)
    assert (level.status, level.findings[0].found) == ("failed", "ValueError: no such thing")


def test_a_model_that_cannot_be_run_never_passes() -> None:
    """gpt-oss has sinks and biases that the engine leaves out."""
    (plan, *_) = planned("gpt-oss-20b", "v5e:4x4", phase="decode", batch=(8,)).plans
    with pytest.raises(Unavailable, match="sinks"):
        host_collectives(load(plan))
    assert shrink(load(plan)).plan.devices <= parse_slice(plan.slice).devices
