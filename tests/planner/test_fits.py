"""`fits`: the largest batch and context per slice, what devices then hold, what runs out, and the smallest slice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

import meshwright
import planner.fits.fits
from mesh.slices import Slice, parse_slice
from meshwright.reports.fits import report, runs_out_text
from meshwright.reports.text import render
from planner import api
from planner.api import fits
from planner.fits.fits import (
    ACTIVATIONS,
    CACHE,
    DIVISION,
    NOTHING,
    SCHEMA,
    WEIGHTS,
    Fits,
    Largest,
    SliceFits,
    make_fits,
)
from planner.query.query import Query
from strategies.models.configs import load_model
from strategies.models.models import Attention, LayerGroup, Mlp, Model
from strategies.models.workload import LARGEST_CONTEXT, Dtypes, Workload

ASKED: Mapping[str, int] = {"batch": 4, "context": 4096}


@pytest.fixture(scope="module")
def found() -> Fits:
    """Llama-3.1-8B on the smallest slices of v5e."""
    return fits("llama-3.1-8b", chips="v5e", chip_counts=(1, 8), **ASKED)


def test_each_slice_takes_what_plan_has_a_layout_for_and_no_more(found: Fits) -> None:
    """`plan` finds a layout at the largest batch and context of each slice, and none at the next one."""
    assert [row.slice for row in found.slices] == ["v5e:1x1", "v5e:2x2", "v5e:2x4"]
    for row in found.slices:
        if row.batch.largest is not None:
            assert fitting(row.slice, row.batch.largest, found.context)
        assert not fitting(row.slice, (row.batch.largest or 0) + 1, found.context)
        if row.context.largest is not None:
            assert fitting(row.slice, found.batch, row.context.largest)
        assert not fitting(row.slice, found.batch, (row.context.largest or 0) + 1)


def fitting(name: str, batch: int, context: int) -> bool:
    """Whether `plan` finds a layout."""
    try:
        return bool(api.plan("llama-3.1-8b", name, batch=[batch], context=context, top=1).plans)
    except meshwright.NothingFits:
        return False


def test_what_devices_hold_adds_up_within_usable_hbm(found: Fits) -> None:
    """Weights, cache and activations are the total; it is within usable HBM where something fits, and beyond if not."""
    for row in found.slices:
        for of in (row.batch, row.context):
            assert of.memory is not None
            memory = of.memory
            parts = memory.weights_bytes + memory.kv_bytes + memory.activation_bytes
            assert memory.total_bytes == pytest.approx(parts, rel=1e-12)
            assert (memory.total_bytes <= memory.usable_bytes) == (of.largest is not None)


def test_hand_checked_weights_and_cache(found: Fits) -> None:
    """On 2x4 the KV cache of the largest batch is the chapter's 2 * S * L * K * H bytes per sequence and device."""
    row = found.slices[2]
    assert row.batch.largest is not None
    assert row.batch.memory is not None
    per_sequence = 2 * 4096 * 32 * 8 * 128 * 2
    assert row.batch.memory.kv_bytes == pytest.approx(row.batch.largest * per_sequence / 8, rel=1e-9)
    assert row.batch.memory.weights_bytes == pytest.approx(8.03e9 * 2 / 8, rel=2e-3)


def test_what_runs_out_is_named(found: Fits) -> None:
    """70B in bf16 is too large for one v5e by its weights alone; 8B's cache fills the HBM of four."""
    one, four = fits("llama-3.1-70b", "v5e:1x1").slices[0], found.slices[1]
    assert (one.batch.largest, one.batch.runs_out) == (None, WEIGHTS)
    assert (one.context.largest, one.context.runs_out) == (None, WEIGHTS)
    assert one.batch.memory is not None
    assert one.batch.memory.weights_bytes == pytest.approx(70.55e9 * 2, rel=1e-3)
    assert (four.batch.runs_out, four.context.runs_out) == (CACHE, CACHE)
    assert four.batch.next == (four.batch.largest or 0) + 1


def test_a_cache_too_large_for_one_sequence_is_not_the_weights() -> None:
    """Where the weights fit and one sequence's cache does not, the cache runs out."""
    one = fits("llama-3.1-8b", "v5e:1x1", weights="int8", context=200_000).slices[0]
    assert (one.batch.largest, one.batch.runs_out) == (None, CACHE)
    assert one.context.largest is not None


def toy(window: int | None = None, F: int = 64) -> Model:
    """One small layer."""
    attention = Attention(N=8, K=8, H=64, window=window)
    group = LayerGroup(count=1, attention=attention, mlp=Mlp(F=F, gated=False))
    return Model(name="toy", D=64, V=64, tied=True, groups=(group,))


def asked(
    model: Model, fixed: Mapping[str, Mapping[str, frozenset[str]]] | None = None, usable_bytes: float = 3e6
) -> Query:
    """A decode request of a toy model on v5e:2x4 with little HBM."""
    slice_ = parse_slice("v5e:2x4")
    chip = msgspec.structs.replace(slice_.chip, usable_hbm_bytes_per_device=usable_bytes)
    work = Workload(phase="decode", batches=(1,), context=64, dtypes=Dtypes())
    return Query(model=model, slices=[parse_slice(slice_.name, chip)], work=work, fixed=fixed or {}, workers=1)


def test_nothing_runs_out_where_windows_bound_the_cache() -> None:
    """With a sliding window the cache stops growing: every context fits."""
    row = make_fits(asked(toy(window=32))).slices[0]
    assert (row.context.largest, row.context.runs_out, row.context.next) == (LARGEST_CONTEXT, NOTHING, None)


def test_activations_run_out_where_they_are_most() -> None:
    """With a window of one token and a wide MLP it is activations that fill HBM."""
    row = make_fits(asked(toy(window=1, F=8192))).slices[0]
    assert row.batch.runs_out == ACTIVATIONS


def test_batches_that_no_layout_runs_are_named() -> None:
    """With attention fixed to cut the batch over 8 devices, 9 to 12 would be padded by more than 25%, and 13 is not."""
    roles = {"attention": {"X": frozenset({"B"}), "Y": frozenset({"B"})}}
    of = make_fits(asked(toy(), roles, usable_bytes=3.3e5)).slices[0].batch
    assert (of.largest, of.next) == (8, 13)
    assert runs_out_text(of) == "HBM: KV cache (next that runs: 13)"


def test_a_model_that_divides_over_no_layout_says_so() -> None:
    """With roles that cut more heads than there are, no batch runs at all."""
    model = msgspec.structs.replace(
        toy(), groups=(LayerGroup(count=1, attention=Attention(N=1, K=1, H=8), mlp=Mlp(F=64, gated=False)),)
    )
    roles = {"attention": {"X": frozenset({"K"}), "Y": frozenset({"K"})}}
    of = make_fits(asked(model, roles)).slices[0].batch
    assert (of.largest, of.runs_out, of.next, of.memory) == (None, DIVISION, None, None)
    assert runs_out_text(of) == "no layout divides"


def test_the_smallest_slice_takes_the_batch_at_the_context(found: Fits) -> None:
    """It is the one with the fewest chips on which both fit together."""
    holding = [row for row in found.slices if fitting(row.slice, found.batch, found.context)]
    assert found.smallest == holding[0].slice == "v5e:2x2"
    assert [row.fits for row in found.slices] == [row in holding for row in found.slices]


def test_the_report_has_both_tables_and_the_smallest_slice(found: Fits) -> None:
    """Each slice has a line in both tables, with what is largest and what runs out."""
    text = render(report(found), "wide")
    for row in found.slices:
        for of in (row.batch, row.context):
            number = "none" if of.largest is None else f"{of.largest:,}"
            assert re.search(rf"^{row.slice} +{row.chips} +{number} .*HBM: {of.runs_out} ", text, re.MULTILINE)
    assert "batch 4 at context 4096 fits on v5e:2x2 (4 chips)" in text


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a `meshwright` command."""
    code = meshwright.main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_prints_and_writes_its_schema(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """`--format json` and `-o` are the same file, of a schema that `meshwright schema fits` prints."""
    path = tmp_path / "fits.json"
    options = ("fits", "llama-3.1-8b", "--slice", "v5e:2x2", "--batch", "4", "--context", "4096")
    code, out, _ = command(capsys, *options, "--format", "json", "-o", str(path))
    assert code == 0
    assert path.read_text() == out
    assert msgspec.json.decode(out, type=Fits).schema == SCHEMA
    code, out, _ = command(capsys, "schema", "fits")
    assert code == 0
    assert '"runs_out"' in out


def test_a_target_that_no_slice_takes_ends_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Asked for a batch at a context, exit code 1 where it fits nowhere; without both, the table is the answer."""
    code, out, err = command(capsys, "fits", "llama-3.1-70b", "--slice", "v5e:1x1", "--batch", "1", "--context", "128")
    assert code == 1
    assert err == "meshwright: llama-3.1-70b: batch 1 at context 128 fits on none of these slices\n"
    assert "batch 1 at context 128 fits on none of these slices" in out
    assert command(capsys, "fits", "llama-3.1-70b", "--slice", "v5e:1x1")[0] == 0


def test_an_interrupt_leaves_the_slices_that_were_filled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their lines are printed, with a word on the others, and exit code 130; with none, only the code."""
    asked = ("fits", "llama-3.1-8b", "--slice", "v5e:2x2,v5e:2x4", "--batch", "1", "--context", "128")
    filled = planner.fits.fits.fits_of_slice
    for most in (1, 0):
        counted = iter(range(100))

        def once(of: tuple[Query, Slice], most: int = most, counted: Iterator[int] = counted) -> SliceFits:
            if next(counted) >= most:
                raise KeyboardInterrupt
            return filled(of)

        monkeypatch.setattr(planner.fits.fits, "fits_of_slice", once)
        code, out, err = command(capsys, *asked)
        assert (code, err) == (130, "meshwright: interrupted\n")
        said = "fits on v5e:2x2 (4 chips); interrupted: others were not filled"
        assert (said in " ".join(out.split())) == (most == 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--chip", "v5e", "--chips", "8..4"), "--chips '8..4': expected the smaller number first"),
        (("--chip", "v5e", "--chips", "3"), "v5e has no slice of so many"),
        (("--slice", "v5e:2x2", "--batch", "0"), "batch 0: expected a whole number from 1"),
        (("--slice", "v5e:2x2", "--context", "0"), "context 0: expected a whole number from 1"),
        (("--slice", "v5e:2x2", "-o", "/none/x.json"), r"cannot write '/none/x\.json'"),
        ((), "no slice given"),
    ],
)
def test_bad_input_is_one_line(options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each mistake ends with exit code 2 and one line that names it."""
    code, out, err = command(capsys, "fits", "llama-3.1-8b", *options)
    assert (code, out) == (2, "")
    assert re.search(message, err)
    assert err.count("\n") == 1


def test_two_kinds_of_layer_are_both_counted() -> None:
    """A model with windows on some layers fits more than one without, and less than one with windows on all."""
    model = load_model("gpt-oss-20b")
    windows = {group.attention.window for group in model.groups}
    assert len(windows) == 2
    row = fits(model, "v5e:2x2", context=65_536, workers=1).slices[0].batch
    assert isinstance(row, Largest)
    assert row.largest is not None
    full = [
        msgspec.structs.replace(g, attention=msgspec.structs.replace(g.attention, window=None)) for g in model.groups
    ]
    more = fits(msgspec.structs.replace(model, groups=tuple(full)), "v5e:2x2", context=65_536).slices[0].batch
    assert more.largest is not None
    assert 1 < more.largest < row.largest
