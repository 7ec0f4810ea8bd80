"""Calibration: fits recover planted constants, chip files read back, and a plan can be made on a measured chip.

No test says how fast anything is.
"""

from __future__ import annotations

import dataclasses
import doctest
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from oracles.torus import whole

import executor.calibrate.calibrate as module
import executor.calibrate.link_fit
import meshwright
from executor.calibrate.calibrate import Calibration, Effort, calibrate, calibration_of, chip_file
from executor.calibrate.link_fit import LinkFit, LinkSample, link_fits, unit_rates
from executor.devices import Unavailable
from mesh.chipfile import chip_toml, measured_chip
from mesh.chips import chip_names, load_chip
from mesh.collectives import all_reduce, all_to_all, group
from mesh.errors import InputError
from mesh.slices import parse_slice, slices_of
from meshwright.reports.calibrate import blocks
from strategies.kinds import KINDS

ROOT = Path(__file__).parents[2]
LAUNCH_S = 4e-4
LEAST = Effort(matmuls=(32,), stream_bytes=1 << 12, collectives=(1 << 10, 1 << 14), groups=(), runs=2, repeats=2)
pytestmark = pytest.mark.skipif(len(jax.devices()) < 4, reason="needs 4 host devices")
RATES = {
    "flops_per_s": {"f32": 5e10, "bf16": 1e11},
    "hbm_bytes": 3e9,
    "hbm_bytes_per_s": 7e9,
    "usable_hbm_bytes_per_device": 2.7e9,
    "link_bytes_per_s": 2.5e9,
    "hop_latency_s": 5e-5,
}


@pytest.fixture(scope="module")
def found() -> Calibration:
    """Four host devices, measured very quickly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "QUICK", LEAST)
        return calibrate("cpu", count=4, quick=True)


def planted(bytes_per_s: float, hop_s: float, noise: float = 0.0) -> list[LinkSample]:
    """Times that a switch with these constants would take after a launch, each off by a relative normal error."""
    draw = np.random.default_rng(0)
    samples = []
    for kind in KINDS:
        for n in (2, 4, 8):
            for nbytes in (4e3, 6e4, 1e6, 2e7):
                per_byte, hops = unit_rates(kind, n)
                each = max(nbytes * per_byte / bytes_per_s, hops * hop_s)
                seconds = (LAUNCH_S + 8 * each) * (1 + noise * draw.normal())
                samples.append(LinkSample(kind=kind, runs=8, moved=nbytes * per_byte, hops=hops, seconds=seconds))
    return samples


def test_the_fit_recovers_planted_constants() -> None:
    """From exact times for all kinds together and for each; within the noise from noisy ones."""
    for fit in link_fits(planted(2.5e9, 5e-5), LAUNCH_S):
        want = 2.5e9 if fit.name.startswith("link") else 5e-5
        assert fit.value == pytest.approx(want, rel=1e-4)
        assert fit.median_error == pytest.approx(0.0, abs=1e-4)
    link, hop, *_ = link_fits(planted(2.5e9, 5e-5, noise=0.05), LAUNCH_S)
    assert link.value == pytest.approx(2.5e9, rel=0.05)
    assert hop.value == pytest.approx(5e-5, rel=0.05)
    assert 0.01 < link.median_error < link.tenth_error < 0.2


def test_one_wild_time_moves_a_fit_little() -> None:
    """A host that was busy for once: a time of a hundred times what it would be."""
    samples = planted(2.5e9, 5e-5)
    samples[5] = dataclasses.replace(samples[5], seconds=100 * samples[5].seconds)
    link, hop, *_ = link_fits(samples, LAUNCH_S)
    assert link.value == pytest.approx(2.5e9, rel=0.05)
    assert hop.value == pytest.approx(5e-5, rel=0.05)


def test_constants_stay_above_0_where_a_term_does_not_show() -> None:
    """A chip has no constant below 0, whatever noise would make of it."""
    samples = [s for s in planted(2.5e9, 1e-12, noise=0.05) if s.moved > 1e6]
    assert all(0 < fit.value < np.inf for fit in link_fits(samples, LAUNCH_S))


def test_fits_name_every_kind_and_say_how_well_they_fit() -> None:
    """First the chip's own two constants, then two per kind."""
    fits = link_fits(planted(1e9, 1e-5), LAUNCH_S)
    assert [f.name for f in fits[:2]] == ["link_bytes_per_s", "hop_latency_s"]
    assert [f.name for f in fits[2::2]] == [f"link_bytes_per_s of {kind}" for kind in KINDS]
    assert fits[0].points == 60
    assert fits[0].quality == "fit of 60 times: median error 0%, 1 in 10 over 0%"


def test_what_is_fitted_is_what_is_priced() -> None:
    """The fit's columns over W and times hop are the two terms of mesh.collectives on the measured chip."""
    slice_ = parse_slice("cpu:8", measured_chip("cpu", 8, RATES, dict.fromkeys(RATES, "planted")))
    over = group(slice_, whole(slice_))
    for kind, price in (("AllReduce", all_reduce), ("AllToAll", all_to_all)):
        per_byte, hops = unit_rates(kind, 8)
        seconds = price(1e6, over)
        assert seconds.bandwidth_s == pytest.approx(1e6 * per_byte / RATES["link_bytes_per_s"])  # type: ignore[operator]
        assert seconds.latency_s == pytest.approx(hops * RATES["hop_latency_s"])  # type: ignore[operator]


@pytest.mark.parametrize("name", chip_names())
def test_the_chip_file_of_every_built_in_chip_reads_back(name: str, tmp_path: Path) -> None:
    """Also those with optional fields and several machines."""
    chip = load_chip(name)
    (tmp_path / "chip.toml").write_bytes(chip_toml(chip, "a comment\n\nof lines"))
    assert load_chip(name, tmp_path / "chip.toml") == chip


def test_texts_are_quoted(tmp_path: Path) -> None:
    """Quotes, backslashes, line breaks and other languages in a source; a dtype that is no bare key."""
    rates = RATES | {"flops_per_s": {"f32": 1e9, "my dtype": 1e16}}
    chip = measured_chip("cpu", 2, rates, dict.fromkeys(rates, 'a "b" \\ \n\x7f mesure é 𝛽'))
    (tmp_path / "chip.toml").write_bytes(chip_toml(chip))
    assert load_chip("cpu", tmp_path / "chip.toml") == chip


def test_devices_that_share_a_host_make_a_chip_for_just_as_many() -> None:
    """Its rates are wrong for fewer; devices of their own come in powers of two, too."""
    sources = dict.fromkeys(RATES, "planted")
    assert [s.name for s in slices_of(measured_chip("cpu", 8, RATES, sources))] == ["cpu:8"]
    own = measured_chip("gpu", 6, RATES, sources, any_number=True)
    assert [s.name for s in slices_of(own)] == ["gpu:1", "gpu:2", "gpu:4", "gpu:6"]


def test_a_plan_is_made_on_the_calibrated_chip(found: Calibration, tmp_path: Path) -> None:
    """The file reads back as the chip, says where each number is from, and `plan` takes it."""
    path = tmp_path / "chip.toml"
    path.write_bytes(chip_file(found))
    assert load_chip("cpu", path) == found.chip
    for field in ("flops_per_s", "hbm_bytes_per_s", "link_bytes_per_s", "hop_latency_s"):
        assert found.chip.sources[field].startswith("calibrated from 4 x cpu, all at once, on 20")
    assert "4 devices share the cores" in path.read_text()
    plans = meshwright.plan(
        tiny_config(tmp_path), "cpu:4", batch=[4], context=64, activations="f32", chip_file=path
    ).plans
    assert plans[0].slice == "cpu:4"
    calibrated = {c.name: c.calibrated for c in plans[0].constants}
    assert calibrated.pop("usable_hbm_bytes_per_device") is False
    assert list(calibrated) == ["flops_per_s.f32", "hbm_bytes_per_s", "link_bytes_per_s", "hop_latency_s"]
    assert all(calibrated.values())


def tiny_config(folder: Path) -> Path:
    """A small Llama's config.json."""
    path = folder / "config.json"
    path.write_text(
        '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 8,'
        '"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 256, "tie_word_embeddings": false}'
    )
    return path


def test_every_constant_has_a_fit(found: Calibration) -> None:
    """FLOP/s by dtype, memory, launch, and the links of all kinds."""
    names = {f.name for f in found.fits}
    assert names >= {"flops_per_s.f32", "flops_per_s.bf16", "hbm_bytes_per_s", "launch_s", "link_bytes_per_s"}
    assert all(f.value > 0 and np.isfinite(f.value) for f in found.fits)
    assert found.launch_s == next(f.value for f in found.fits if f.name == "launch_s")
    assert max(f.points for f in found.fits) == len(KINDS) * len(LEAST.collectives)


def test_one_device_has_no_link_and_says_so() -> None:
    """A chip needs a number there; no collective of one device is ever priced with it."""
    mesh_of_one = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
    fits = [
        LinkFit(name=name, value=value, unit="", points=1)
        for name, value in (("flops_per_s.f32", 1e9), ("hbm_bytes_per_s", 2e9), ("launch_s", 1e-5))
    ]
    chip = calibration_of("cpu", mesh_of_one, fits).chip
    assert chip.link_bytes_per_s == 2e9
    assert chip.sources["link_bytes_per_s"] == "assumption: one device has no link"


def test_what_is_not_here_cannot_be_calibrated() -> None:
    """Too many host devices once jax runs, no such platform, no such accelerator."""
    with pytest.raises(Unavailable, match="needs 64 cpu devices, and JAX has"):
        calibrate("cpu", count=64)
    with pytest.raises(InputError, match="expected cpu, gpu or tpu"):
        calibrate("npu")
    with pytest.raises(InputError, match="count 0"):
        calibrate("cpu", count=0)
    with pytest.raises(InputError, match="count 65: expected at most 64 devices of the host's CPU"):
        calibrate("cpu", count=65)
    if jax.default_backend() == "cpu":
        with pytest.raises(Unavailable, match="needs 1 tpu devices, and JAX has 0 here: a TPU and its JAX"):
            calibrate("tpu")


@pytest.mark.slow
def test_host_devices_are_made_where_jax_has_not_started() -> None:
    """A process of its own, without a flag for it; the module is not run at import."""
    code = "from executor.calibrate.calibrate import device_mesh; print(device_mesh('cpu', 3).size)"
    env = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=env, check=True)
    assert run.stdout.strip() == "3"


def test_the_examples_in_docstrings_hold() -> None:
    """They are what a reader checks by hand."""
    assert doctest.testmod(executor.calibrate.link_fit).failed == 0


def test_the_command_writes_a_chip_file_and_prints_what_it_fitted(
    found: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A row per constant, and how to plan on the chip; nothing else is left in the folder."""
    path = tmp_path / "chip.toml"
    monkeypatch.setattr(module, "calibrate", lambda *_, **__: found)
    assert meshwright.main(["calibrate", "--quick", "--count", "4", "-o", str(path)]) == 0
    out, err = capfd.readouterr()
    assert (err, load_chip("cpu", path)) == ("", found.chip)
    assert [p.name for p in tmp_path.iterdir()] == ["chip.toml"]
    lines = out.splitlines()
    assert [line.split("  ")[0] for line in lines[3:] if line[:1].strip()][: len(found.fits)] == [
        f.name for f in found.fits
    ]
    assert (
        " ".join(" ".join(lines[-2:]).split())
        == f"to plan for it: meshwright plan MODEL --slice cpu:4 --chip-file {path}"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--count", "0"), "--count 0: expected at least 1"),
        (("--count", "many"), "--count 'many': expected a whole number, such as 64"),
        (("--devices", "npu"), "--devices 'npu': expected cpu, gpu or tpu"),
        (("-o", "/nonexistent/chip.toml"), "cannot write '/nonexistent/chip.toml': No such file or directory;"),
        (("--format", "pdf"), "--format 'pdf': expected table, json or markdown"),
    ],
)
def test_bad_options_are_one_line(words: tuple[str, ...], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Before anything is measured."""
    assert meshwright.main(["calibrate", *words]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"meshwright: {message}")
    assert err.count("\n") == 1


def test_an_accelerator_that_is_not_here_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    """It says what is needed."""
    if jax.default_backend() == "cpu":
        assert meshwright.main(["calibrate", "--devices", "tpu"]) == 2
        assert capfd.readouterr().err.startswith("meshwright: --devices tpu: needs 1 tpu devices, and JAX has 0 here")


def test_a_slice_of_another_chip_than_the_files_is_one_line(
    found: Calibration, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither the file's nor built in, another number of devices, and no file; a built-in one may stand beside it."""
    path = tmp_path / "chip.toml"
    path.write_bytes(chip_file(found))
    model, given = str(tiny_config(tmp_path)), ("--chip-file", str(path), "--context", "64", "--batch", "1")
    for words, message in (
        (("gpu:4", *given), f"slice 'gpu:4': neither the chip of '{path}', which is 'cpu', nor a built-in one"),
        (("cpu:3", *given), "slice 'cpu:3': cpu has no slice 3; nearest: cpu:4"),
        (("cpu:4",), "slice 'cpu:4': a chip that `meshwright calibrate` makes; name its chip file, too"),
    ):
        for command in ("plan", "roofline"):
            assert meshwright.main([command, model, "--slice", *words]) == 2
            assert capfd.readouterr().err == f"meshwright: {message}\n"
    for command, slice_ in (("plan", "v5e:1x1"), ("roofline", "cpu:4")):
        assert meshwright.main([command, model, "--slice", slice_, *given]) == 0
        capfd.readouterr()


def test_what_is_printed_names_the_slices(found: Calibration) -> None:
    """Without a file there is nothing to plan with."""
    last = blocks(found, None)[-1]
    assert list(last.lines)[-1] == "slices: cpu:4"  # type: ignore[union-attr]
