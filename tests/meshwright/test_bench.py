"""The benchmarks of layouts and of batches: their arithmetic, and that they run. No test says how fast."""

from __future__ import annotations

import doctest
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import jax
import pytest

from executor.levels.shrink import F32
from executor.levels.timing import label
from mesh.chipfile import measured_chip
from mesh.chips import Chip
from mesh.errors import InputError
from mesh.slices import parse_slice
from strategies.models.models import Attention, LayerGroup, Mlp, Model
from strategies.models.workload import Workload

pytestmark = pytest.mark.skipif(len(jax.devices()) < 4, reason="needs 4 host devices")
RATES = {
    "flops_per_s": {"f32": 5e10},
    "hbm_bytes": 3e9,
    "hbm_bytes_per_s": 7e9,
    "usable_hbm_bytes_per_device": 2.7e9,
    "link_bytes_per_s": 2.5e9,
    "hop_latency_s": 5e-5,
}
DENSE = Model(
    name="tiny",
    D=64,
    V=256,
    tied=False,
    groups=(LayerGroup(count=2, attention=Attention(N=8, K=4, H=8), mlp=Mlp(F=128, gated=True)),),
)
WORK = Workload(phase="decode", batches=(4,), context=32, dtypes=F32)


def benchmark(name: str) -> ModuleType:
    """The script tests/bench/name.py."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "bench" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


layouts, sweep = benchmark("bench_layouts"), benchmark("bench_batch_sweep")


@pytest.fixture(scope="module")
def chip() -> Chip:
    """A made-up chip of four host devices."""
    return measured_chip("cpu", 4, RATES, dict.fromkeys(RATES, "made up"))


@pytest.mark.slow
def test_layouts_spread_over_the_prices(chip: Chip) -> None:
    """All different, best first; a choice keeps both ends."""
    plans = layouts.layouts_of(parse_slice("cpu:4", chip), DENSE, WORK)
    assert len(plans) >= 12
    assert len({label(p) for p in plans}) == len(plans)
    chosen = layouts.spread(plans, 5)
    assert [p.cost.step_s for p in chosen] == sorted(p.cost.step_s for p in chosen)
    assert (len(chosen), chosen[0], chosen[-1]) == (5, plans[0], plans[-1])
    assert layouts.spread(plans, 10**6) == plans


@pytest.mark.slow
def test_layouts_are_compared(chip: Chip, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row per layout, each run once it is said, on the slice's devices."""
    seen: list[str] = []
    devices: list[int] = []
    monkeypatch.setattr(layouts, "measure", lambda loaded, given, repeats: devices.append(len(given)) or 0.5)
    slice_ = parse_slice("cpu:4", chip)
    found = layouts.compare_layouts(slice_, DENSE, WORK, layouts=3, repeats=2, progress=seen.append)
    assert [r.layout for r in found.rows] == seen
    assert devices == [4, 4, 4]
    assert all(r.measured_s == 0.5 and r.priced_s > 0 for r in found.rows)
    assert found.what == "tiny, decode, batch 4, context 32, f32 weights, f32 matmuls, on cpu:4, median of 2"
    with pytest.raises(InputError, match="--layouts 1: expected at least 2"):
        layouts.compare_layouts(slice_, DENSE, WORK, layouts=1)


def test_a_comparison_says_what_its_numbers_say() -> None:
    """Errors, correlation, and what the first by price costs against the fastest."""
    times = ((1.0, 3.0), (2.0, 2.0), (4.0, 8.0))
    rows = tuple(layouts.Timed(layout="abc"[i], priced_s=p, measured_s=m) for i, (p, m) in enumerate(times))
    found = layouts.Comparison(what="made up", rows=rows)
    assert (found.rank_correlation, found.median_ratio, found.median_error) == (0.5, 2.0, 1.0)
    assert "| a | 1000.00 | 3000.00 | +200% |" in found.text()
    assert found.text().endswith(
        "3 layouts: Spearman rank correlation 0.500; error: median 100%; measured over priced: median 2.00. "
        "The fastest layout is number 2 by price; the first by price takes 1.50 x its time."
    )


def test_a_chip_file_that_is_none_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the command says it."""
    with pytest.raises(SystemExit, match="2"):
        layouts.main(["--chip-file", str(tmp_path / "none.toml")])
    assert "cannot read the chip file" in capsys.readouterr().err


def test_the_sweep_finds_a_planted_knee(chip: Chip) -> None:
    """Where the floor meets the slope; on a real device at a tiny size it has a row per batch."""
    batches = (1, 4, 16, 64, 256, 1024)
    assert sweep.knee(batches, [max(2.0, b / 10) for b in batches]) == pytest.approx(20.0)
    assert doctest.testmod(sweep).failed == 0
    found = sweep.batch_sweep(chip, dtype="f32", side=64, most=4, repeats=2)
    assert [p.batch for p in found.points] == [1, 2, 4]
    assert all(p.measured_s > 0 for p in found.points)
    assert found.predicted_critical_batch == pytest.approx(2 * 5e10 / 7e9)
    assert found.text().splitlines()[0].startswith("[B, 64] x [64, 64] in f32 on each of 4 x cpu")
    assert found.text().endswith("14 predicted.")
