"""Options and fixtures that tests share."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

# Before anything imports jax: the host's CPU, as enough devices for four mesh axes of 2, and quick compiles.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=16 --xla_backend_optimization_level=0 "
    "--xla_llvm_disable_expensive_passes=true",
)

settings.register_profile("meshwright", derandomize=True, deadline=None, print_blob=False)
settings.load_profile("meshwright")


LONG = (
    "test_executor_engine.py::test_prompts_then_decoding_equal_the_reference[qwen-2d-batch-tied]",
    "test_executor_engine.py::test_prompts_then_decoding_equal_the_reference[parallel-mqa-layer-norm-padded]",
    "test_executor_engine.py::test_prompts_then_decoding_equal_the_reference[gqa-sequence-and-heads]",
    "test_executor_engine.py::test_prompts_then_decoding_equal_the_reference[window-dense-and-moe]",
    "test_executor_engine.py::test_prompts_then_decoding_equal_the_reference[moe-dispatched]",
    "test_executor_reference.py::test_decoding_prompts_of_different_length_equals_each_alone[dense]",
    "test_executor_numerics.py::test_bf16_is_held_to_a_bound_of_its_own[moe-prefill-3]",
    "test_executor_numerics.py::test_a_searched_plan_of_a_real_model_passes_on_its_shrunken_copy[mixtral-8x7b-v5e:4x4-prefill]",
    "test_executor_host_collectives.py::test_a_searched_plan_of_a_real_model_passes[palm-540b-v4:4x4x4-prefill]",
    "test_bench.py::test_layouts_spread_over_the_prices",
    "test_executor_hosts.py::test_two_processes_verify_a_plan_and_the_first_speaks",
    "test_executor_automatic.py::test_the_step_gives_the_logits_of_the_reference[mixed-decode0]",
    "test_executor_automatic.py::test_the_step_gives_the_logits_of_the_reference[few-prefill]",
    "test_executor_shrink.py::test_layouts_axes_and_features_stay[mixtral-8x7b-v5e:4x8-prefill-16]",
    "test_mesh_oracle.py::test_every_group_costs_exactly_its_best_cut[tpu7x:4x4x4]",
    "test_mesh_oracle.py::test_odd_and_mixed_shapes_cost_exactly_their_best_cut[v5e:8x16]",
    "test_planner_search.py::test_best_five_are_those_of_brute_force[1-143]",
    "test_planner_search.py::test_best_five_are_those_of_brute_force[2-78]",
    "test_planner_validate_accuracy.py::test_the_table_is_what_validate_finds",
)
"""Tests of many seconds whose like are quicker; they are among the slow ones."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--run-slow`."""
    parser.addoption("--run-slow", action="store_true", help="run the tests marked slow, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the long tests slow; skip slow tests unless asked for them."""
    for item in items:
        if item.nodeid.endswith(LONG):
            item.add_marker(pytest.mark.slow)
    if config.getoption("--run-slow"):
        return
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="slow: needs --run-slow"))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises `KeyboardInterrupt` here, also where it was ignored at the start, as in a background job."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def bruteforce() -> ModuleType:
    """The helper module tests/bruteforce.py, whichever way pytest imports tests."""
    name = "meshwright_tests_bruteforce"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / "bruteforce.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]
