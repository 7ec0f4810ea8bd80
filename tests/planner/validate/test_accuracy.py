"""Error bars on plans, and `--constants`."""

import json
from pathlib import Path

import pytest

import meshwright
from mesh.chips import load_chip
from mesh.errors import InputError
from mesh.slices import parse_slice
from meshwright.reports.plan import accuracy_text
from planner.plan.accuracy import TABLE, accuracy_of, slice_at, slice_of_plan, table
from planner.plan.planfile import read_plan
from planner.validate.validate import error_bars, validate

LLAMA, PALM = "llama3-70b-v5e16", "palm-540b-v4-64"
SMALL = ["llama-3.1-8b", "--slice", "v5e:2x2", "--weights", "int8", "--kv", "int8", "--context", "1024", "--batch", "8"]


@pytest.mark.slow
def test_the_table_is_what_validate_finds() -> None:
    """planner/data/accuracy.json is what `meshwright validate --error-bars` writes today."""
    found = error_bars(validate([LLAMA, PALM]))
    assert len(found) == len(table()) == 9
    for said, now in zip(table(), found, strict=True):
        assert (said.chip, said.phase, said.set, said.constants, said.points) == (
            now.chip,
            now.phase,
            now.set,
            now.constants,
            now.points,
        ), f"{TABLE} is old: write it again"
        assert (said.median, said.worst) == pytest.approx((now.median, now.worst), rel=0.02)
        assert (said.reached is None) == (now.reached is None)
        if said.reached and now.reached:
            for name in said.reached.__struct_fields__:
                assert getattr(said.reached, name) == pytest.approx(getattr(now.reached, name), rel=1e-3, abs=1e-8)


def test_plans_carry_the_error_bar_of_their_constants() -> None:
    """The chip's, the data sheet's and fitted constants have each its own; others none."""
    slice_ = parse_slice("v5e:4x8")
    for constants in ("chip", "data-sheet", LLAMA):
        bar = accuracy_of(slice_at(slice_, constants).chip, "decode")
        assert bar is not None
        assert (bar.set, bar.constants, bar.points) == (LLAMA, constants, 24)
    assert accuracy_of(slice_.chip, "prefill") is None
    assert accuracy_of(load_chip("v6e"), "decode") is None
    assert accuracy_of(parse_slice("v4:2x2x1").chip, "prefill") is not None


def test_a_chip_that_is_not_the_built_in_one_is_uncalibrated() -> None:
    """Measurements say nothing about other hardware of the same name."""
    chip = load_chip("v5e")
    faster = type(chip)(**{n: getattr(chip, n) for n in chip.__struct_fields__} | {"hbm_bytes_per_s": 9e11})
    assert accuracy_of(faster, "decode") is None


@pytest.mark.parametrize("constants", ["chip", "data-sheet", LLAMA])
def test_plan_and_price_take_constants(constants: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan says what it was priced at, with its error bar, and `price` of its layout gives the same."""
    path = tmp_path / "plan.json"
    assert meshwright.main(["plan", *SMALL, "--constants", constants, "-o", str(path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    best = read_plan(path).plans[0]
    assert best.reached == slice_at(parse_slice("v5e:2x2"), constants).chip.reached
    assert accuracy_text(best) in text
    assert "of 24 measured decode steps" in accuracy_text(best)
    assert any(c.calibrated for c in best.constants) == (constants == LLAMA)
    again = tmp_path / "again.json"
    assert meshwright.main(["price", *SMALL, "--constants", constants, "--layout", str(path), "-o", str(again)]) == 0
    assert read_plan(again).plans[0].cost.step_s == pytest.approx(best.cost.step_s, rel=1e-12)
    capsys.readouterr()
    assert meshwright.main(["explain", str(path)]) == 0
    assert accuracy_text(best) in " ".join(capsys.readouterr().out.split())


def test_a_prefill_plan_of_v5e_is_uncalibrated(capsys: pytest.CaptureFixture[str]) -> None:
    """No prefill step of v5e is in the data."""
    assert meshwright.main(["plan", *SMALL, "--phase", "prefill", "--top", "1"]) == 0
    assert "estimate: uncalibrated" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("constants", "said"),
    [
        ("llama3-70b", f"constants 'llama3-70b' are not known; closest: {LLAMA}"),
        (PALM, f"constants '{PALM}' are of v4; expected some of v5e, or chip"),
        ("v5e-layer-appendix-a", "constants 'v5e-layer-appendix-a' are not known"),
    ],
)
def test_unknown_constants_are_bad_input(constants: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that says what there is, exit code 2."""
    assert meshwright.main(["plan", *SMALL, "--constants", constants]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_a_plan_of_invented_constants_is_refused() -> None:
    """A plan's constants are the chip's, the data sheet's, or fitted ones."""
    slice_ = parse_slice("v5e:4x4")
    for constants in ("chip", "data-sheet", LLAMA):
        at = slice_at(slice_, constants)
        assert slice_of_plan(slice_, at.chip.reached) == at
    invented = type(slice_.chip.reached)(hbm=1, matmul=1, link=1, hop=0, launch_s=0)  # type: ignore[misc]
    with pytest.raises(InputError, match="`reached`"):
        slice_of_plan(slice_, invented)


def test_table_is_typed_json() -> None:
    """The file is a list of objects, one per chip, phase, set and constants."""
    rows = json.loads(TABLE.read_text("utf-8"))
    keys = [(row["chip"], row["phase"], row["set"], row["constants"]) for row in rows]
    assert len(set(keys)) == len(keys)
