"""The tiers of the tests, and what every test process needs before it imports jax."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from zlib import crc32

import pytest
from hypothesis import settings

# Before anything imports jax: the host's CPU, as enough devices for four mesh axes of 2, and quick compiles (one LLVM
# module per program and no emitters of fusions take 0.4 of the time). The collectives are those of any other flags.
# A flag that jaxlib does not know ends the process: 0.12 has no choice of emitters any more.
FLAGS = (
    "--xla_force_host_platform_device_count=16",
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_parallel_codegen_split_count=1",
    *(["--xla_cpu_use_fusion_emitters=false"] if version("jaxlib").startswith(("0.8.", "0.9.", "0.10.")) else []),
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))

settings.register_profile("default", derandomize=True, deadline=None, print_blob=False)
settings.register_profile("full", parent=settings.get_profile("default"), max_examples=300)
settings.load_profile("default")

ONE_IN = 4
"""The share of the slow tests that the tier `ci` runs."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--tier`."""
    parser.addoption(
        "--tier",
        choices=("default", "ci", "full"),
        default="default",
        help="default: all tests but the slow ones; ci: a sample of the slow ones, too; full: all",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Draw three times as many examples in the tier `full`; the first are the same."""
    if config.getoption("--tier") == "full":
        settings.load_profile("full")


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the slow tests that are not of the tier."""
    tier, slow = config.getoption("--tier"), [item for item in items if "slow" in item.keywords]
    if tier == "full":
        return
    kept = sample(item.nodeid for item in slow) if tier == "ci" else set()
    left_out = [item for item in slow if item.nodeid not in kept]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if "slow" not in item.keywords or item.nodeid in kept]


def sample(nodeids: Iterable[str]) -> set[str]:
    """Of each test function the cases whose name's checksum says so, and at the least one: the same on every run."""
    functions: dict[str, list[str]] = {}
    for nodeid in sorted(nodeids, key=lambda nodeid: crc32(nodeid.encode())):
        functions.setdefault(nodeid.partition("[")[0], []).append(nodeid)
    drawn = {nodeid for cases in functions.values() for nodeid in cases if crc32(nodeid.encode()) % ONE_IN == 0}
    return drawn | {cases[0] for cases in functions.values()}


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises `KeyboardInterrupt` here, also where it was ignored at the start, as in a background job."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
