"""The level `tpu-compiler`: plans of real models at full size, held against the real TPU compiler."""

from __future__ import annotations

import contextlib
import importlib.util
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import pytest
from helpers.planned import planned

import meshwright
from executor.compiler.compiled import Compiled, CompileFailed, DoesNotFit
from executor.devices import Unavailable, prepare_environment
from executor.levels import tpu_compiler as tpu
from executor.levels.tpu_compiler import Facts, compile_plan, judge, packed, tpu_compiler
from executor.loaded import load
from planner.plan.plan import Memory, Plan
from planner.plan.pricing import price_layout
from strategies.notation import LayoutError
from strategies.readers.cost import speeds

prepare_environment()
needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler: pip install 'meshwright[tpu]'"
)

Case = tuple[str, str, str, int, int, str, str]  # model, slice, phase, batch, context, dtype of weights, of the cache

DEFAULT: tuple[Case, ...] = (("llama-3.1-8b", "v5e:2x2", "decode", 16, 2048, "bf16", "bf16"),)
SLOW: tuple[Case, ...] = (
    ("llama-3.1-70b", "v5p:4x4x4", "decode", 64, 8192, "bf16", "bf16"),
    ("llama-3.1-70b", "tpu7x:2x2x2", "decode", 32, 8192, "int8", "int8"),
    ("mixtral-8x7b", "v5e:8x16", "decode", 256, 2048, "bf16", "bf16"),  # Reordered
    ("palm-540b", "v4:4x4x4", "decode", 64, 2048, "bf16", "bf16"),  # Padded
    ("llama-3.1-8b", "v6e:2x2", "prefill", 1, 512, "bf16", "bf16"),
    ("qwen3-30b-a3b", "v6e:2x4", "prefill", 1, 512, "bf16", "bf16"),
    ("llama-3.1-8b", "v4:2x2x1", "decode", 64, 4096, "bf16", "bf16"),
    ("llama-3.1-70b", "v5e:4x4", "decode", 32, 8192, "bf16", "bf16"),
    ("llama-3.1-70b", "v5e:4x4", "decode", 64, 8192, "int8", "int8"),
    ("llama-3.1-70b", "v5e:16x16", "decode", 256, 8192, "bf16", "bf16"),
    ("llama-3.1-70b", "tpu7x:2x2x2", "decode", 32, 8192, "bf16", "bf16"),
    ("llama-3.1-8b", "v5e:4x4", "prefill", 16, 8192, "bf16", "bf16"),
    ("llama-3.1-70b", "v6e:4x8", "prefill", 2, 8192, "bf16", "bf16"),
    ("llama-3.1-70b", "v6e:4x8", "prefill", 2, 8192, "int8", "int8"),
    ("llama-3.1-70b", "tpu7x:4x4x4", "prefill", 8, 8192, "bf16", "bf16"),
    ("qwen3-30b-a3b", "v5e:4x4", "decode", 64, 4096, "bf16", "bf16"),
    ("qwen3-30b-a3b", "v6e:2x4", "prefill", 2, 4096, "bf16", "bf16"),
    ("qwen3-30b-a3b", "v5p:2x2x2", "prefill", 16, 4096, "bf16", "bf16"),
    ("qwen3-30b-a3b", "v5e:2x4", "prefill", 8, 4096, "int8", "int8"),  # Repeated
    ("qwen3-30b-a3b", "v5p:2x2x1", "prefill", 8, 4096, "int8", "int8"),  # overflows stacks of 64 KiB
    ("mixtral-8x7b", "v4:2x2x4", "decode", 32, 4096, "bf16", "bf16"),
    ("mixtral-8x7b", "tpu7x:2x2x1", "prefill", 2, 4096, "bf16", "bf16"),
    ("palm-540b", "v5p:4x4x8", "decode", 256, 2048, "bf16", "bf16"),
    ("palm-540b", "v4:4x4x4", "prefill", 8, 2048, "bf16", "bf16"),
    ("palm-540b", "v6e:16x16", "prefill", 16, 2048, "bf16", "bf16"),
)
EDGES = (  # model, slice, context, dtype of weights and cache, the largest batch that fits: decode
    ("llama-3.1-70b", "v5e:4x4", 8192, "bf16", 48),
    ("llama-3.1-70b", "v5e:2x4", 8192, "int8", 48),
    ("llama-3.1-70b", "tpu7x:2x2x1", 8192, "bf16", 250),
    ("mixtral-8x7b", "v4:2x2x1", 4096, "bf16", 71),
    ("qwen3-30b-a3b", "v6e:2x2", 4096, "bf16", 181),
)


def plan_of(model: str, slice_: str, phase: str, batch: int, context: int, **known: Any) -> Plan:
    """The best plan."""
    return planned(model, slice_, phase=phase, batch=(batch,), context=context, top=1, **known).plans[0]


@cache
def small() -> Facts:
    """A small plan, compiled once."""
    return compile_plan(load(plan_of("llama-3.1-8b", "v5e:2x2", "decode", 16, 2048)))


def holds(case: Case) -> None:
    """The level passes, whatever the compiler rewrote."""
    level = tpu_compiler(load(plan_of(*case[:5], weights=case[5], kv=case[6])))
    assert level.status == "passed", level
    assert level.findings == ()
    assert level.checked > 4
    assert level.notes[0].startswith("memory: arguments ")


@needs_compiler
@pytest.mark.parametrize("case", DEFAULT, ids=lambda case: "-".join(map(str, case)))
def test_a_plan_is_what_the_compiler_makes(case: Case) -> None:
    """Arguments within 0.5%, total within 5%, the cache in place, collectives as priced."""
    holds(case)


@needs_compiler
@pytest.mark.slow
def test_a_step_that_is_spread_out_over_free_memory_packs_into_what_was_promised() -> None:
    """16 prompts through Llama-8B on v5e:4x4, weights gathered behind matmuls: the compiler leaves gaps of 0.4 GB."""
    facts = packed(compile_plan(load(plan_of("llama-3.1-8b", "v5e:4x4", "prefill", 16, 4096))))
    assert isinstance(facts.packed, Compiled)
    assert facts.packed.total_bytes < facts.plan.memory.total_bytes
    level = judge(facts, "manual")
    assert level.status == "passed", level
    assert any("packs the step into" in note for note in level.notes)


@needs_compiler
@pytest.mark.slow
def test_a_promise_of_too_little_memory_is_a_finding_after_packing() -> None:
    """The compiler is asked whether so much would do, and says no."""
    memory = small().plan.memory
    need = memory.total_bytes
    asked = packed(_with_memory(small(), msgspec.structs.replace(memory, total_bytes=0.9 * need)))
    assert isinstance(asked.packed, DoesNotFit)
    assert asked.packed.need_bytes == pytest.approx(need, rel=0.02)
    assert [f.what for f in judge(asked, "manual").findings] == ["bytes in all"]


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW, ids=lambda case: "-".join(map(str, case)))
def test_more_plans_are_what_the_compiler_makes(case: Case) -> None:
    """The same for more models, chips and prompts."""
    holds(case)


@needs_compiler
@pytest.mark.slow
def test_verdicts_agree_on_both_sides_of_the_edge() -> None:
    """Llama-8B on v5e:2x4 at context 8192: the largest batch fills 99% of HBM and compiles, one more does not."""
    plan = plan_of("llama-3.1-8b", "v5e:2x4", "decode", 110, 8192)
    assert 0.99 < plan.memory.total_bytes / plan.memory.usable_bytes < 1
    agree_at_the_edge(plan, {})


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: "-".join(map(str, edge)))
def test_verdicts_agree_on_both_sides_of_more_edges(edge: tuple[str, str, int, str, int]) -> None:
    """The same for more models, chips and dtypes."""
    model, slice_, context, dtype, batch = edge
    known = {"weights": dtype, "kv": dtype}
    agree_at_the_edge(plan_of(model, slice_, "decode", batch, context, **known), known)


def agree_at_the_edge(plan: Plan, known: dict[str, str]) -> None:
    """This batch fits and compiles; one more is refused by the planner, and in the same layout by the compiler."""
    with pytest.raises(meshwright.NothingFits):
        plan_of(plan.model.name, plan.slice, "decode", plan.batch + 1, plan.context, **known)
    assert isinstance(compile_plan(load(plan)).compiled, Compiled)
    more = at_batch(plan, plan.batch + 1)
    assert more.memory.total_bytes > more.memory.usable_bytes
    need = compile_plan(load(more)).compiled
    assert isinstance(need, DoesNotFit)
    assert need.need_bytes == pytest.approx(more.memory.total_bytes, rel=0.01)


def at_batch(plan: Plan, batch: int) -> Plan:
    """The same layout at another batch, padded as far as it must be."""
    loaded = load(plan)
    layout, slice_, work = loaded.layout, loaded.slice_, loaded.workload
    for padded in range(batch, 2 * batch):
        with contextlib.suppress(LayoutError):
            return price_layout(layout, slice_, plan.model, work, batch, padded, speeds(slice_.chip, work.dtypes))
    raise AssertionError(f"no batch from {batch} on divides")


@needs_compiler
def test_a_tampered_promise_of_memory_is_a_finding() -> None:
    """Weights that the plan counts too low, a cache too small, a total too low: each is named with both numbers."""
    facts = small()
    memory = facts.plan.memory
    for change, what in (
        ({"weights_bytes": memory.weights_bytes * 0.98}, "bytes of the arguments"),
        ({"kv_bytes": memory.kv_bytes * 0.9}, "bytes of the arguments"),
        ({"total_bytes": memory.total_bytes * 0.9}, "bytes in all"),
        ({"usable_bytes": memory.total_bytes * 0.9}, "memory"),
    ):
        found = judge(_with_memory(facts, msgspec.structs.replace(memory, **change)), "manual")
        assert found.status == "failed"
        assert what in [finding.what for finding in found.findings]


@needs_compiler
def test_results_of_another_size_are_a_finding() -> None:
    """Caches that come back in a wider dtype than the plan's, say."""
    facts = small()
    assert isinstance(facts.compiled, Compiled)
    wide = replace(facts, compiled=replace(facts.compiled, output_bytes=2 * facts.compiled.output_bytes))
    assert "bytes of the results" in [f.what for f in judge(wide, "manual").findings]


@needs_compiler
def test_less_memory_than_promised_is_well_only_where_memory_is_short() -> None:
    """There the compiler reuses what it otherwise would not; elsewhere the plan is wrong."""
    facts = small()
    memory = msgspec.structs.replace(facts.plan.memory, total_bytes=facts.plan.memory.total_bytes * 1.1)
    found = [f.what for f in judge(_with_memory(facts, memory), "manual").findings]
    assert found == ["bytes in all"]
    short = msgspec.structs.replace(memory, usable_bytes=memory.total_bytes * 1.01)
    assert judge(_with_memory(facts, short), "manual").findings == ()


def _with_memory(facts: Facts, memory: Memory) -> Facts:
    return _with_plan(facts, msgspec.structs.replace(facts.plan, memory=memory))


def _with_plan(facts: Facts, plan: Plan) -> Facts:
    return replace(facts, loaded=replace(facts.loaded, plan=plan))


@needs_compiler
def test_a_tampered_collective_is_a_finding() -> None:
    """A priced collective with other bytes is not what was compiled; the finding names the step."""
    facts = small()
    steps = list(facts.plan.cost.steps)
    at = next(n for n, s in enumerate(steps) if s.comms and s.layers > 1)
    comm = msgspec.structs.replace(steps[at].comms[0], bytes=steps[at].comms[0].bytes * 2)
    steps[at] = msgspec.structs.replace(steps[at], comms=(comm, *steps[at].comms[1:]))
    plan = msgspec.structs.replace(facts.plan, cost=msgspec.structs.replace(facts.plan.cost, steps=tuple(steps)))
    found = judge(_with_plan(facts, plan), "manual")
    assert found.status == "failed"
    assert any(steps[at].text in f.promised for f in found.findings)


@needs_compiler
def test_a_copied_cache_is_a_finding() -> None:
    """A copy of one cache tensor in the program's text is found by its size, and a cache that is not aliased, too."""
    facts = small()
    assert isinstance(facts.compiled, Compiled)
    of_cache = next(line for line in facts.compiled.text.splitlines() if "'Kc" in line and " parameter(" in line)
    name, shape = of_cache.split("=")[0].strip(), of_cache.split("=")[1].split(" parameter(")[0]
    copied = facts.compiled.text.replace(of_cache, f"{of_cache}\n  %copy.9999 ={shape} copy({name})")
    for change, promised in (
        ({"alias_bytes": 0}, "1.0737 GB updated in place"),
        ({"text": copied}, "updated in place"),
    ):
        found = judge(replace(facts, compiled=replace(facts.compiled, **change)), "manual")
        assert promised in [finding.promised for finding in found.findings if finding.what.startswith("cache")]


def test_a_plan_that_the_compiler_refuses_is_a_finding() -> None:
    """Unless the plan says itself that it does not fit."""
    plan = plan_of("llama-3.1-8b", "v5e:2x2", "decode", 16, 2048)
    facts = Facts(load(plan), DoesNotFit(20e9, 16.91e9), {})
    assert judge(facts, "manual").findings[0].found == "20.0000 GB needed, 16.9100 GB usable"
    smaller = judge(replace(facts, compiled=DoesNotFit(20e9, 16.8e9)), "manual").findings[0].found
    assert smaller.startswith("20.0000 GB needed, 16.8000 GB usable (109 MB less than planned with")
    over = msgspec.structs.replace(plan.memory, total_bytes=20e9)
    assert judge(_with_memory(facts, over), "manual").status == "passed"


@needs_compiler
def test_a_compiler_that_cannot_be_told_of_less_memory_leaves_the_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it took with all of HBM free stands against the promise."""
    memory = small().plan.memory
    low = _with_memory(small(), msgspec.structs.replace(memory, total_bytes=0.9 * memory.total_bytes))

    def fail(*_: object, **__: object) -> Facts:
        raise CompileFailed("no such option")

    monkeypatch.setattr(tpu, "compile_plan", fail)
    assert packed(low) == low
    assert "bytes in all" in [f.what for f in judge(packed(low), "manual").findings]


def test_without_a_compiler_the_level_is_unavailable() -> None:
    """A GPU plan has none."""
    plan = meshwright.plan("llama-3.1-8b", "h100:8", batch=[16], context=2048, top=1).plans[0]
    with pytest.raises(Unavailable, match="only the TPU compiler works without its devices"):
        tpu_compiler(load(plan))
