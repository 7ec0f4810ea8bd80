"""Level timing, and plans on the chip of a chip file at every level. No test says how fast."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
from msgspec.structs import replace as changed

import executor.levels.host_collectives
import executor.levels.timing as module
import meshwright
from executor import devices
from executor.clock import median_seconds
from executor.devices import Unavailable, memory_bytes
from executor.levels.level import LevelOptions
from executor.levels.timing import judge, label, timing
from executor.loaded import load
from executor.verdict import TOLD, verdict
from mesh.chipfile import chip_toml, measured_chip
from mesh.chips import Chip
from mesh.slices import parse_slice
from planner.plan.plan import Plan
from planner.plan.planfile import encode
from strategies.models.models import Attention, LayerGroup, Mlp, Model

pytestmark = pytest.mark.skipif(len(jax.devices()) < 4, reason="needs 4 host devices")
RATES = {
    "flops_per_s": {"f32": 5e10, "bf16": 1e11},
    "hbm_bytes": 3e9,
    "hbm_bytes_per_s": 7e9,
    "usable_hbm_bytes_per_device": 2.7e9,
    "link_bytes_per_s": 2.5e9,
    "hop_latency_s": 5e-5,
}
SOURCES = dict.fromkeys(RATES, "calibrated from nothing: made up")
ATTENTION = Attention(N=8, K=4, H=8)
DENSE = Model(
    name="tiny",
    D=64,
    V=256,
    tied=False,
    groups=(LayerGroup(count=2, attention=ATTENTION, mlp=Mlp(F=128, gated=True)),),
)
MOE = changed(
    DENSE, groups=(LayerGroup(count=2, attention=ATTENTION, mlp=Mlp(F=32, gated=True, E=4, k=2)),), name="tiny-moe"
)
F32 = {"weights": "f32", "kv": "f32", "activations": "f32"}


@pytest.fixture(scope="module")
def chip() -> Chip:
    """A made-up chip of four host devices."""
    return measured_chip("cpu", 4, RATES, SOURCES)


@pytest.fixture
def files(chip: Chip, tmp_path: Path) -> tuple[str, str]:
    """A plan on that chip, and its chip file."""
    (tmp_path / "chip.toml").write_bytes(chip_toml(chip))
    slice_ = parse_slice("cpu:4", chip)
    found = meshwright.plan(DENSE, slice_, batch=[4], context=32, top=1, **F32)  # type: ignore[arg-type]
    (tmp_path / "plan.json").write_bytes(encode(found))
    return str(tmp_path / "plan.json"), str(tmp_path / "chip.toml")


def plan_of(chip: Chip, model: Model = DENSE, phase: str = "decode") -> Plan:
    """The best plan of a tiny model on the made-up chip."""
    slice_ = parse_slice("cpu:4", chip)
    return meshwright.plan(model, slice_, phase=phase, batch=[4], context=32, top=1, **F32).plans[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "phase", "mode"),
    [
        (DENSE, "decode", "manual"),
        pytest.param(DENSE, "prefill", "manual", marks=pytest.mark.slow),
        pytest.param(MOE, "decode", "manual", marks=pytest.mark.slow),
        pytest.param(DENSE, "decode", "automatic", marks=pytest.mark.slow),
    ],
)
def test_a_step_is_timed_and_told_and_not_judged(chip: Chip, model: Model, phase: str, mode: str) -> None:
    """Notes hold both times, their ratio, what was priced, the layout and whose constants; no factor, no verdict."""
    plan = plan_of(chip, model, phase)
    level = timing(load(plan, chip=chip), LevelOptions(mode=mode), repeats=2)
    assert (level.level, level.mode, level.status, level.checked, level.findings) == ("timing", mode, TOLD, 0, ())
    assert level.notes[0].startswith(f"{phase} step: ")
    assert " measured (median of 2 on 4 x cpu), " in level.notes[0]
    assert [note.partition(":")[0] for note in level.notes[1:3]] == ["priced", "layout"]
    assert level.notes[3].startswith("times are calibrated from nothing;")


def test_the_modes_time_different_programs(chip: Chip, monkeypatch: pytest.MonkeyPatch) -> None:
    """Automatic mode times what XLA makes of the plan's constraints, unconstrained what it makes of none."""
    timed: list[Any] = []
    monkeypatch.setattr(module, "step_seconds", lambda run, repeats: timed.append(run) or 1.0)
    plan = plan_of(chip)
    for mode in ("manual", "automatic", "unconstrained"):
        timing(load(plan, chip=chip), LevelOptions(mode=mode))
    assert [type(run).__name__ for run in timed] == ["Engine", "Automatic", "Automatic"]
    assert [run.constraints for run in timed[1:]] == [plan.activation_specs, {}]


@pytest.mark.parametrize(
    ("times", "within", "status"),
    [(1.0, 1.5, "passed"), (1.4, 1.5, "passed"), (1.6, 1.5, "failed"), (0.6, 1.5, "failed"), (99.0, None, "told")],
)
def test_a_factor_judges_both_ways(chip: Chip, times: float, within: float | None, status: str) -> None:
    """Neither much slower nor much faster than priced."""
    plan = plan_of(chip)
    level = judge(plan, LevelOptions(timing_within=within), times * plan.cost.step_s, "by hand")
    priced = f"{plan.cost.step_s * 1e3:.3g} ms"
    assert level.status == status
    assert [f.promised for f in level.findings] == ([f"{priced} within a factor of 1.5"] if status == "failed" else [])
    assert level.notes[0].endswith(f" measured (by hand), {priced} priced: {times:.2f} x")


def test_devices_that_are_not_the_plans_are_unavailable(chip: Chip, monkeypatch: pytest.MonkeyPatch) -> None:
    """A TPU's plan on a host, more devices than there are, and more memory than they have."""
    if jax.default_backend() == "cpu":
        (plan,) = meshwright.plan(DENSE, "v5e:2x2", batch=[4], context=32, top=1).plans
        with pytest.raises(Unavailable, match="v5e:2x2 needs 4 tpu devices, there are 0: `meshwright calibrate`"):
            timing(load(plan))
    many = measured_chip("cpu", 4096, RATES, SOURCES)
    with pytest.raises(Unavailable, match="cpu:4096 needs 4096 cpu devices"):
        timing(replace(load(plan_of(chip), chip=chip), slice_=parse_slice("cpu:4096", many)))
    monkeypatch.setattr(module, "memory_bytes", lambda device, devices: 1e4)
    with pytest.raises(Unavailable, match=r"GB per device, there are 0\.00 GB: plan a smaller batch"):
        timing(load(plan_of(chip), chip=chip))


def test_a_host_has_the_memory_that_its_control_group_lets_it_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container that is less than what the machine has; without a limit it is what the machine has."""
    device, limit = jax.devices("cpu")[0], tmp_path / "memory.max"
    monkeypatch.setattr(devices, "CGROUP", (str(limit), str(tmp_path / "none")))
    whole = memory_bytes(device, 1)
    limit.write_text("max\n")
    assert memory_bytes(device, 4) == whole / 4
    limit.write_text("8000000\n")
    assert memory_bytes(device, 4) == 2e6


def test_a_step_that_cannot_run_is_a_finding(chip: Chip) -> None:
    """Where the plan's layouts have been edited into nonsense, say."""
    loaded = load(plan_of(chip), chip=chip)
    level = timing(replace(loaded, layout=replace(loaded.layout, assigned=())))
    assert level.status == "failed"
    assert (level.findings[0].what, level.findings[0].promised) == ("the step", "runs")


def test_the_median_leaves_out_the_warm_up() -> None:
    """One run more than asked for; the result is waited for."""
    runs: list[int] = []
    assert median_seconds(lambda: runs.append(1), 3) >= 0
    assert len(runs) == 4


def test_a_label_says_the_whole_layout(chip: Chip) -> None:
    """Mesh, residual, and every component's program and roles."""
    plan = plan_of(chip)
    parts = label(plan).split("; ")
    assert parts[0].startswith("a4, residual ")
    assert [part.split()[0] for part in parts[1:]] == [one.component for one in plan.layouts]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that take half a second, and collectives that hold."""
    monkeypatch.setattr(module, "measure", lambda *_: 0.5)
    passing = verdict("collectives", "manual", 1, ())
    monkeypatch.setattr(executor.levels.host_collectives, "host_collectives", lambda *_: passing)


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    code = meshwright.main(["verify", *arguments])
    out, err = capfd.readouterr()
    return code, out, err


@pytest.mark.usefixtures("quick")
def test_timing_alone_and_without_a_factor_exits_2(files: tuple[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    """The report is printed, but nothing was judged, and an unattended job must not take that for a pass."""
    plan, chip = files
    code, out, err = run(capfd, plan, "--chip-file", chip, "--level", "timing")
    assert code == 2
    assert out.endswith("nothing was judged\n")
    assert err == (
        "meshwright: nothing was judged: level timing needs --timing-within FACTOR, or another level beside it\n"
    )


@pytest.mark.usefixtures("quick")
def test_timing_with_a_factor_decides(files: tuple[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    """So wide that it passes, too narrow; beside another level it may do without."""
    plan, chip = files
    wide = ("--chip-file", chip, "--format", "json", "--level")
    code, out, _ = run(capfd, plan, *wide, "timing", "--timing-within", "1e9")
    assert (code, json.loads(out)["holds"], json.loads(out)["levels"][-1]["status"]) == (0, True, "passed")
    code, out, _ = run(capfd, plan, *wide, "timing", "--timing-within", "2")
    assert (code, json.loads(out)["holds"], json.loads(out)["levels"][-1]["status"]) == (1, False, "failed")
    code, out, _ = run(capfd, plan, *wide, "timing,collectives")
    assert code == 0
    assert [(r["level"], r["status"]) for r in json.loads(out)["levels"]] == [
        ("plan", "passed"), ("timing", "told"), ("collectives", "passed"),
    ]  # fmt: skip


@pytest.mark.usefixtures("quick")
def test_what_is_only_told_is_skipped_in_junit(files: tuple[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    """With the reason, and the times as the test's output."""
    plan, chip = files
    _, out, _ = run(capfd, plan, "--chip-file", chip, "--level", "timing", "--format", "junit")
    assert 'failures="0" skipped="1"' in out
    assert '<skipped message="measured and not judged: no factor was given that it must be within" />' in out
    assert "<system-out>decode step: " in out


@pytest.mark.parametrize("mode", ["manual", pytest.param("automatic", marks=pytest.mark.slow)])
def test_a_plan_on_a_chip_file_verifies_at_every_level(
    mode: str, files: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """But for the TPU compiler's, which a chip that is no TPU has not."""
    plan, chip = files
    code, out, _ = run(capfd, plan, "--chip-file", chip, "--mode", mode, "--format", "json")
    assert code == 0, out
    assert [(r["level"], r["status"]) for r in json.loads(out)["levels"]] == [
        ("plan", "passed"), ("numerics", "passed"), ("collectives", "passed"), ("tpu-compiler", "skipped"),
    ]  # fmt: skip


def test_a_chip_file_that_is_not_the_plans_is_one_line(
    chip: Chip, files: tuple[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """None, another, garbage; and levels that need what is not there."""
    plan, good = files
    other = tmp_path / "other.toml"
    other.write_bytes(chip_toml(changed(chip, name="mine")))
    garbage = tmp_path / "garbage.toml"
    garbage.write_text("name = [")
    for words, message in (
        ((), "the plan is for cpu:4, no built-in chip: name its chip file, as for `plan`"),
        (("--chip-file", str(other)), f"--chip-file '{other}' has the chip 'mine'; the plan is for cpu:4"),
        (("--chip-file", str(garbage)), f"{garbage}: not a chip file: "),
        (("--chip-file", str(tmp_path / "none")), f"{tmp_path / 'none'}: cannot read the chip file: No such file"),
        (
            ("--chip-file", good, "--level", "tpu-compiler"),
            "level 'tpu-compiler' cannot run here: cpu:4 is no TPU slice",
        ),
        (
            ("--chip-file", good, "--timing-within", "2"),
            "--timing-within 2: it judges level timing, which",
        ),
        (
            ("--chip-file", good, "--level", "timing", "--timing-within", "0.5"),
            "--timing-within 0.5: expected a factor of at least 1",
        ),
        (
            ("--chip-file", good, "--level", "timing", "--timing-within", "wide"),
            "--timing-within 'wide': expected a number",
        ),
    ):
        code, out, err = run(capfd, plan, *words)
        assert (code, out) == (2, "")
        assert err.startswith(f"meshwright: {message}")
        assert err.count("\n") == 1


def test_a_plan_of_another_calibration_fails_at_level_plan(
    chip: Chip, files: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Its seconds are not those that the chip of the file gives."""
    plan, path = files
    Path(path).write_bytes(chip_toml(changed(chip, hbm_bytes_per_s=8e9)))
    code, out, _ = run(capfd, plan, "--chip-file", path, "--format", "json")
    (level,) = json.loads(out)["levels"]
    assert code == 1
    assert {"cost.hbm_s", "constants[1] (hbm_bytes_per_s).value"} <= {f["what"] for f in level["findings"]}
