"""The plan's programs give what the reference gives, and communicate as priced: every program, kind and role."""

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
from executor.levels.host_collectives import check_collectives
from executor.levels.numerics import BOUNDS, numerics, run_numerics
from executor.loaded import Loaded, load
from executor.run.engine import engine_of
from executor.run.runnable import RunOptions
from strategies.layoutfile import builtin_programs
from strategies.models.workload import Dtypes

pytestmark = pytest.mark.skipif(
    len(jax.devices()) < 8, reason="needs 8 host devices: XLA_FLAGS=--xla_force_host_platform_device_count=8"
)


# Drawn layouts on a 2x2x2 mesh. The first cover every program and every kind of model in both phases; with the others
# they cover every role of every program. All but `QUICK` of the first, and the others, are slow ones.
FIRST = [
    *[("mha", "decode", 2), ("mha", "prefill", 16), ("gqa", "decode", 0), ("gqa", "prefill", 119)],
    *[("few", "decode", 2), ("few", "prefill", 0), ("mqa", "decode", 0), ("mqa", "prefill", 4)],
    *[("moe", "decode", 87), ("moe", "prefill", 66), ("mixed", "decode", 52), ("mixed", "prefill", 94)],
    *[("parallel", "decode", 3), ("parallel", "prefill", 4), ("parallel-gqa", "decode", 3)],
    ("parallel-gqa", "prefill", 8),
]
OTHERS = [
    *[("parallel", "prefill", 1), ("parallel-gqa", "prefill", 2), ("moe", "prefill", 19), ("parallel", "decode", 41)],
    *[("parallel", "prefill", 5), ("parallel-gqa", "prefill", 101), ("parallel", "decode", 12)],
    *[("parallel", "prefill", 41), ("moe", "decode", 2), ("moe", "prefill", 22), ("moe", "decode", 7)],
    *[("moe", "prefill", 0), ("moe", "prefill", 3)],
]
COVER = FIRST + OTHERS
QUICK = [
    *[("mha", "prefill", 16), ("gqa", "decode", 0), ("few", "decode", 2), ("mqa", "prefill", 4)],
    *[("moe", "prefill", 66), ("parallel", "decode", 3), ("parallel-gqa", "prefill", 8)],
]
INTERPRETED = {
    ("decode", "moe"),
    ("prefill", "moe"),
    ("decode", "moe-scatter"),
    ("prefill", "parallel-block-gathered-kv"),
}
CUBE = (2, 2, 2)
REST = [
    (kind, phase, sizes, 1000 + number)
    for kind in drawn.MODELS
    for phase in ("decode", "prefill")
    for number, sizes in enumerate(drawn.MESHES)
]


def engines(loaded: Loaded) -> tuple[Any, Any]:
    """The engine, and that which has the priced slots of experts."""
    plan, mesh = loaded.plan, host_mesh(loaded)
    run = engine_of(loaded, mesh)
    moe = any(group.mlp.moe for group in plan.model.groups)
    return run, engine_of(loaded, mesh, RunOptions(capacity_factor=capacity_factor(plan))) if moe else run


def holds(plan: Any) -> None:
    """Both levels pass; they share what is compiled."""
    loaded = load(plan)
    run, slots = engines(loaded)
    for level in (
        run_numerics(loaded, run.mesh, "manual", lambda loaded, mesh: run),
        check_collectives(loaded, run.mesh, "manual", lambda loaded, mesh: slots),
    ):
        assert level.status == "passed", level.findings
        assert level.checked > 1


@pytest.mark.parametrize(
    ("kind", "phase", "seed"), [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow) for case in COVER]
)
def test_every_role_of_every_program_gives_the_reference_and_runs_what_was_priced(
    kind: str, phase: str, seed: int
) -> None:
    """Float32, decode and prefill, logits of every token within 1e-5 standard deviations."""
    holds(drawn.draw(seed, kind, phase, CUBE))


def test_the_drawn_layouts_cover_every_role_and_kind() -> None:
    """A new program or role needs a layout in the list, a new program or kind of model one of the default tests.

    Default tests of other files run what the quick layouts leave out: `run/test_interpret.py` the programs of
    `INTERPRETED`, sharded and not, and `automatic/test_automatic.py` the kind `mixed`.
    """

    def found(cases: list[tuple[str, str, int]]) -> set[tuple[str, str, str]]:
        return set().union(*(drawn.covered(drawn.draw(seed, kind, phase, CUBE)) for kind, phase, seed in cases))

    wanted = {(p.phase, p.name, r.name) for p in builtin_programs() for r in p.roles if p.component != "embed"}
    assert found(COVER) >= wanted
    assert {role[:2] for role in found(FIRST)} >= {role[:2] for role in wanted}
    assert {role[:2] for role in found(QUICK)} | INTERPRETED >= {role[:2] for role in wanted}
    assert {kind for kind, _, _ in QUICK} == drawn.MODELS.keys() - {"mixed"}
    assert set(QUICK) <= set(FIRST)
    assert {(kind, phase) for kind, phase, _ in FIRST} == {(k, p) for k in drawn.MODELS for p in ("decode", "prefill")}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "phase", "sizes", "seed"), REST)
def test_more_layouts_on_even_and_uneven_meshes(kind: str, phase: str, sizes: tuple[int, ...], seed: int) -> None:
    """112 more: 1D, 2D and 3D, 2x4, 4x2, 8x1, 4x1x2."""
    holds(drawn.draw(seed, kind, phase, sizes))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "phase", "seed"), [("gqa", "decode", 0), ("moe", "prefill", 3)])
def test_bf16_is_held_to_a_bound_of_its_own(kind: str, phase: str, seed: int) -> None:
    """The median token's root mean square was 6e-3 to 7e-3 standard deviations; the bound is 0.02."""
    loaded = load(changed(drawn.draw(seed, kind, phase, CUBE), dtypes=Dtypes()))
    level = run_numerics(loaded, host_mesh(loaded), "manual", engine_of)
    assert level.status == "passed", level.findings
    assert f"bound {BOUNDS['bf16']}" in level.notes[0]


@pytest.mark.parametrize(
    ("model", "slice_name", "phase"),
    [
        pytest.param("llama-3.1-8b", "v5e:4x4", "decode", marks=pytest.mark.slow),
        pytest.param("mixtral-8x7b", "v5e:4x4", "prefill", marks=pytest.mark.slow),
    ],
)
def test_a_searched_plan_of_a_real_model_passes_on_its_shrunken_copy(model: str, slice_name: str, phase: str) -> None:
    """From the public plan to the verdict, with the measured error in a note."""
    (plan, *_) = planned(model, slice_name, phase=phase, batch=(32,), context=2048).plans
    level = numerics(load(plan))
    assert (level.status, level.level, level.mode) == ("passed", "numerics", "manual")
    assert "of their standard deviation off" in level.notes[0]


def test_a_model_that_cannot_be_run_never_passes() -> None:
    """gpt-oss has sinks and biases that neither the engine nor the reference has."""
    (plan, *_) = planned("gpt-oss-20b", "v5e:4x4", phase="decode", batch=(8,)).plans
    with pytest.raises(Unavailable, match=r"gpt-oss-20b cannot be run: .*sinks"):
        numerics(load(plan))


def test_too_few_devices_are_said_with_what_to_do() -> None:
    """16 are needed where 8 are."""
    plan = drawn.draw(2, "mha", "decode", CUBE)
    with pytest.raises(Unavailable, match=r"needs 1000 host devices, there are .*: set XLA_FLAGS="):
        host_mesh(replace(load(plan), plan=changed(plan, devices=1000)))


def test_a_wrong_engine_is_told_by_step_sequence_and_position() -> None:
    """An engine with another epsilon in its norms."""
    loaded = load(drawn.draw(2, "mha", "decode", CUBE))
    level = run_numerics(loaded, host_mesh(loaded), "manual", lambda p, m: engine_of(p, m, RunOptions(eps=0.1)))
    assert level.status == "failed"
    assert level.findings[0].what == "logits of decode step 0, sequence 0, position 0"
    assert level.findings[0].promised == "within 1e-05 standard deviations of the reference"
