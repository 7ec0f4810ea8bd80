"""Options and fixtures that tests share."""

from __future__ import annotations

import importlib.util
import os
import sys
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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--run-slow`."""
    parser.addoption("--run-slow", action="store_true", help="run the tests marked slow, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip slow tests unless asked for them."""
    if config.getoption("--run-slow"):
        return
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="slow: needs --run-slow"))


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
