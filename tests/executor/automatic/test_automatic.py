"""Automatic mode: XLA's own collectives against the priced ones, with and without constraints; numerics; findings."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import jax
import pytest
from helpers import drawn
from helpers.planned import planned

from executor.automatic.judge import tensor_of
from executor.automatic.mode import automatic_engine
from executor.compiler.compiled import CompileFailed, DoesNotFit
from executor.compiler.hlo import Collective, sent_share
from executor.levels import automatic as module
from executor.levels.automatic import automatic_collectives, automatic_tpu_compiler
from executor.levels.common import host_mesh
from executor.levels.level import LevelOptions
from executor.levels.numerics import run_numerics
from executor.loaded import load
from planner.plan.plan import Plan

pytestmark = pytest.mark.skipif(
    len(jax.devices()) < 8, reason="needs 8 host devices: XLA_FLAGS=--xla_force_host_platform_device_count=8"
)
needs_compiler = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs meshwright[tpu]")


UNCONSTRAINED = LevelOptions(mode="unconstrained")


def llama(phase: str = "decode") -> Plan:
    """The plan of Llama-3.1-70B in int8 that is best at the data sheet: 64 sequences, or 8 prompts; D is cut."""
    batch, context = (64, 8192) if phase == "decode" else (8, 2048)
    found = planned(
        "llama-3.1-70b", "v5e:4x4", phase=phase, batch=(batch,), context=context, weights="int8", kv="int8", top=1,
        constants="data-sheet",
    )  # fmt: skip
    return found.plans[0]


@pytest.mark.parametrize(
    ("kind", "phase"),
    [
        ("mixed", "decode"),
        *(
            pytest.param(kind, phase, marks=pytest.mark.slow)
            for kind in ("few", "gqa", "moe", "parallel", "parallel-gqa", "mixed")
            for phase in ("decode", "prefill")
            if (kind, phase) not in (("mixed", "decode"), ("few", "decode"))
        ),
    ],
)
def test_the_step_gives_the_logits_of_the_reference(kind: str, phase: str) -> None:
    """With constraints, on 8 devices; prompts of different length, windows, experts, biases and layer norms."""
    loaded = load(drawn.draw(3, kind, phase, (2, 4)))
    level = run_numerics(
        loaded, host_mesh(loaded), "automatic", lambda one, mesh: automatic_engine(one, mesh, one.plan.activation_specs)
    )
    assert (level.status, level.mode) == ("passed", "automatic"), level.findings


@pytest.mark.slow
def test_the_step_without_constraints_gives_the_same_numbers() -> None:
    """XLA may move what it likes, but not change the result."""
    loaded = load(drawn.draw(3, "gqa", "decode", (2, 4)))
    level = run_numerics(loaded, host_mesh(loaded), "automatic", lambda one, mesh: automatic_engine(one, mesh, {}))
    assert level.status == "passed", level.findings


def test_under_constraints_xla_does_what_was_priced() -> None:
    """On host devices a ReduceScatter is an AllReduce: a note."""
    level = automatic_collectives(load(llama()))
    assert (level.level, level.mode, level.status) == ("collectives", "automatic", "passed"), level.findings
    assert any("ReduceScatter" in note and "AllReduce" in note for note in level.notes)


LAYOUTS = {  # what moves in them: by component a program, and the roles of mesh axes X and Y
    "a gathered partial sum": ("gqa", ("B", "-"), {"attention": ("attention", "N+K", "D+B"), "mlp": ("mlp", "F", "F")}),
    "few heads": ("few", ("B", "-"), {"attention": ("attention", "ND+B", "N+K"), "mlp": ("mlp", "F", "D")}),
    "experts": ("moe", ("B", "-"), {"attention": ("attention", "-+B", "N+K"), "moe": ("moe", "E+B", "F")}),
    "a parallel block": ("parallel", ("B", "D"), {"block": ("parallel-block", "N+B", "D+B")}),
}


def small(name: str) -> Plan:
    """A layout of these roles, priced."""
    kind, residual, roles = LAYOUTS[name]
    roles = roles | {"vocab": ("unembed", "V", "-")}
    played = {component: (program, axes) for component, (program, *axes) in roles.items()}
    found: Plan = drawn.priced(drawn.MODELS[kind], "decode", (2, 2), residual, played)
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "experts" else pytest.mark.slow) for name in LAYOUTS]
)
def test_every_type_of_a_tensor_is_asked_for_and_followed(name: str) -> None:
    """Where the last one alone was not enough."""
    level = automatic_collectives(load(small(name)))
    assert level.status == "passed", level.findings


def test_without_its_constraint_a_partial_sum_is_reduced_before_it_travels() -> None:
    """Of each slot instead of each token: the report names the tensor, and what was priced for it."""
    level = automatic_collectives(load(small("experts")), without=["0/moe/y"])
    assert level.status == "failed"
    (finding,) = [f for f in level.findings if f.what == "moe/y"]
    assert finding.found.startswith("XLA added AllReduce over b of ")
    assert "o[B_a, D] {U_b}" in finding.promised


def test_mode_unconstrained_asks_for_nothing() -> None:
    """Specs of parameters, inputs and results only: the level has that mode, and fails."""
    level = automatic_collectives(load(llama()), UNCONSTRAINED)
    assert (level.mode, level.status) == ("unconstrained", "failed")


def test_a_dropped_constraint_is_told_by_what_xla_added() -> None:
    """Without the constraint on attention's input, which is cut along D, the weights cut there are gathered."""
    level = automatic_collectives(load(llama()), without=["0/attention/n"])
    assert level.status == "failed"
    assert {"attention/Q", "attention/k"} <= {finding.what for finding in level.findings}
    first = level.findings[0]
    assert first.found.startswith("XLA added AllGather over b of ")
    assert "MB per device and step; op jit(" in first.found
    assert first.promised.startswith("ReduceScatter over b of ")


@needs_compiler
@pytest.mark.slow
def test_the_tpu_compiler_follows_the_constraints_and_gathers_weights_without() -> None:
    """At full size: 1.26 GB of WQ, WK and WV travel to each device in every step, where activations were to."""
    plan = llama()
    level = automatic_tpu_compiler(load(plan))
    assert (level.level, level.status) == ("tpu-compiler", "passed"), level.findings
    assert level.notes[0].startswith("memory: arguments 9.7")
    alone = automatic_tpu_compiler(load(plan), UNCONSTRAINED)
    assert alone.status == "failed"
    (finding, *_) = alone.findings
    assert finding.what == "attention/Q"
    assert "AllGather over b of 16777216 s8, 80 times" in finding.found


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "slice_", "batch", "context"),
    [
        ("llama-3.1-8b", "v6e:2x4", 128, 8192),
        ("qwen3-30b-a3b", "v5e:4x4", 64, 4096),
        ("mixtral-8x7b", "v5p:2x2x4", 256, 8192),
        ("palm-540b", "v4:4x4x4", 256, 2048),
    ],
)
def test_the_tpu_compiler_follows_plans_of_other_models(model: str, slice_: str, batch: int, context: int) -> None:
    """Those that the last type of each tensor did not suffice for."""
    plan = planned(model, slice_, batch=(batch,), context=context, top=1).plans[0]
    level = automatic_tpu_compiler(load(plan))
    assert level.status == "passed", level.findings


@needs_compiler
@pytest.mark.slow
def test_the_tpu_compiler_follows_a_plan_of_prefill() -> None:
    """Without constraints it gathers keys and values once per block of keys."""
    level = automatic_tpu_compiler(load(llama("prefill")))
    assert level.status == "passed", level.findings
    alone = automatic_tpu_compiler(load(llama("prefill")), UNCONSTRAINED)
    assert "attention/O" in {finding.what for finding in alone.findings}


def test_a_step_comes_with_its_arguments() -> None:
    """Jitted, with shapes that have shardings: the cache is donated."""
    loaded = load(drawn.draw(3, "gqa", "decode", (2, 4)))
    engine = automatic_engine(loaded, host_mesh(loaded), {})
    step, arguments = engine.decode_step(), engine.abstract_arguments()
    assert {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(arguments)} == {8}
    assert step.lower(*arguments).donate_argnums


def test_what_does_not_compile_or_fit_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's own words."""

    def fail(*_: object) -> None:
        raise CompileFailed("it failed")

    monkeypatch.setattr(module, "compile_on", fail)
    level = automatic_collectives(load(llama()))
    assert (level.status, level.findings[0].found) == ("failed", "it failed")
    monkeypatch.setattr(module, "compile_on", lambda *_: DoesNotFit(20e9, 17e9))
    level = automatic_collectives(load(llama()))
    assert (level.status, level.findings[0].what) == ("failed", "memory")
    assert level.findings[0].found == "20.0000 GB needed, 17.0000 GB usable"


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("jit(<lambda>)/while/body/closed_call/attention/Q/ab,bcd->acd/dot_general", "attention/Q"),  # JAX 0.10
        ("jit(<lambda>)/while/body/eval_jaxpr/attention/Q/jit(dynamic_index_in_dim)/squeeze", "attention/Q"),  # 0.12
        ("jit(f)/while/body/eval_jaxpr/reshape;jit(f)/while/body/eval_jaxpr/attention/O/squeeze", "attention/O"),
        (
            "jit(f)/while/body/closed_call/attention/(k/ab,bcd->acd/dot_general:Q/ab,bcd->acd/dot_general)",
            "attention/k",
        ),
        ("jit(f)/vocab/Em/jit(_take)/gather", "vocab/Em"),
        ("jit(f)/while/body/eval_jaxpr/jit(remainder)/select_n", "select_n"),
        ("", "an unnamed operation"),
    ],
)
def test_a_collective_is_named_by_the_tensor_it_serves(name: str, tensor: str) -> None:
    """Whatever JAX calls the body of a loop, and where operations were joined into one; by its user if nameless."""
    found = Collective(kind="AllGather", name="all-gather.1", op_name=name, parts=(), groups=())
    assert tensor_of(found) == tensor
    assert tensor_of(replace(found, op_name="", user_op_name=name)) == tensor


def test_sent_bytes_are_those_of_the_algorithms() -> None:
    """Of 8 bytes over 4 devices."""
    kinds = ("AllGather", "ReduceScatter", "AllReduce", "AllToAll", "CollectivePermute")
    assert [8.0 * sent_share(kind, 4) for kind in kinds] == [6, 6, 12, 1.5, 8]
