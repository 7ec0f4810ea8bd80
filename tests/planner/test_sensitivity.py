"""`sensitivity`: what a little less or more of each hardware number does to the choice."""

from __future__ import annotations

import re
from math import log
from pathlib import Path

import msgspec
import pytest

import meshwright
from mesh.chipfile import chip_toml
from mesh.chips import load_chip
from mesh.errors import InputError
from mesh.slices import parse_slice
from meshwright.reports.sensitivity import report, value_text
from meshwright.reports.text import render
from planner import api
from planner.plan.compare import step_seconds
from planner.plan.layout_file import layout_of
from planner.plan.planfile import PlanFile, encode
from planner.sensitivity.sensitivity import QUANTITIES, Subject, sensitivity
from planner.sensitivity.types import SCHEMA, Outcome, QuantityEffect, SensitivityFile
from strategies.layout import ComponentLayout, MeshAxes

OPTIONS = {"batch": [32], "context": 8192, "weights": "int8", "kv": "int8"}


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan file: Llama-3.1-70B on v5e:4x4, the best layout and a runner-up."""
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    path.write_bytes(encode(api.plan("llama-3.1-70b", "v5e:4x4", top=2, **OPTIONS)))  # type: ignore[arg-type]
    return path


@pytest.fixture(scope="module")
def found(plans: Path) -> SensitivityFile:
    """What 20% do to the best plan."""
    return sensitivity(plans)


def of(found: SensitivityFile, quantity: str) -> QuantityEffect:
    """The hardware number of that name."""
    return next(one for one in found.quantities if one.quantity == quantity)


def outcomes(found: SensitivityFile) -> list[Outcome]:
    """Every change of every number."""
    return [outcome for one in found.quantities for outcome in (one.less, one.more)]


def test_every_hardware_number_of_the_chip_is_varied(found: SensitivityFile) -> None:
    """v5e has no second core; all other numbers are there with the chip's values."""
    names = [quantity.name for quantity in QUANTITIES if quantity.name != "core link bandwidth"]
    assert [one.quantity for one in found.quantities] == names
    chip = load_chip("v5e")
    assert of(found, "HBM bandwidth").value == chip.hbm_bytes_per_s
    assert of(found, "FLOP/s").value == chip.flops_per_s["bf16"]
    assert of(found, "HBM capacity").less.value == pytest.approx(0.8 * chip.usable_hbm_bytes_per_device)


def test_the_best_plan_has_no_regret_as_things_are(found: SensitivityFile) -> None:
    """The search finds the plan's own layout again."""
    assert found.regret == 0
    assert found.changes == ()
    assert found.best is not None
    assert found.best.step_s == found.step_s


def test_no_best_layout_is_slower_than_the_kept_one(found: SensitivityFile) -> None:
    """Where the kept layout fits, the best is as fast or faster, and regret says by how much."""
    for outcome in outcomes(found):
        assert outcome.best is not None
        assert outcome.kept_fits
        assert outcome.regret is not None
        assert outcome.regret >= -1e-12
        assert outcome.kept_s == pytest.approx(outcome.best.step_s * (1 + outcome.regret), rel=1e-12)
        assert outcome.changed == (outcome.regret > 1e-9)
        assert not outcome.changes or outcome.changed


def test_more_of_a_bandwidth_never_slows_the_kept_layout(found: SensitivityFile) -> None:
    """FLOP/s and bandwidths speed it up or leave it; latencies do the opposite; capacity does nothing."""
    for one in found.quantities:
        if one.unit in ("FLOP/s", "bytes/s"):
            assert one.more.kept_s <= found.step_s <= one.less.kept_s
            assert one.elasticity <= 0
        elif one.unit == "s":
            assert one.less.kept_s <= found.step_s <= one.more.kept_s
            assert one.elasticity >= 0
    assert of(found, "HBM capacity").elasticity == 0


def test_the_kept_layouts_step_is_that_of_its_own_steps(found: SensitivityFile, plans: Path) -> None:
    """Pricing it on the changed chip gives what its steps' terms give, times the factors."""
    plan = meshwright.read_plan(plans).plans[0]
    for quantity, name in (("FLOP/s", "flops"), ("HBM bandwidth", "hbm"), ("ICI bandwidth", "ici")):
        one = of(found, quantity)
        for outcome in (one.less, one.more):
            again_s = step_seconds(plan, **{name: outcome.factor})
            assert outcome.kept_s == pytest.approx(again_s, rel=1e-9)
        span = log(one.more.factor / one.less.factor)
        assert one.elasticity == pytest.approx(log(one.more.kept_s / one.less.kept_s) / span)


def test_the_best_layout_is_what_plan_finds_on_that_chip(found: SensitivityFile, tmp_path: Path) -> None:
    """With 20% less HBM bandwidth in a chip file, `plan` finds the layout and step that are said."""
    chip = load_chip("v5e")
    path = tmp_path / "slow.toml"
    path.write_bytes(chip_toml(msgspec.structs.replace(chip, hbm_bytes_per_s=0.8 * chip.hbm_bytes_per_s)))
    slow = api.plan("llama-3.1-70b", "v5e:4x4", top=1, chip_file=path, **OPTIONS).plans[0]  # type: ignore[arg-type]
    less = of(found, "HBM bandwidth").less
    assert less.best is not None
    assert less.best.step_s == pytest.approx(slow.cost.step_s, rel=1e-12)
    assert less.best.layouts == slow.layouts
    assert less.changed
    kept, best = less.changes[0].kept, less.changes[0].best
    assert less.changes[0].component == "attention"
    assert best == slow.layouts[0].roles_over(slow.mesh) != kept


def test_a_runner_up_says_what_the_best_is(tmp_path: Path) -> None:
    """Of a plan that is not the best, regret is there as things are, with what differs."""
    path = tmp_path / "two.json"
    path.write_bytes(encode(api.plan("llama-3.1-8b", "v6e:2x2", batch=[8], context=1024, top=2)))
    found = sensitivity(path, pick=2, swing=0.01)
    best, second = meshwright.read_plan(path).plans
    assert found.regret == pytest.approx(second.cost.step_s / best.cost.step_s - 1)
    assert found.changes
    assert "more than the best layout's" in render(report(found), "table")


def test_less_memory_may_leave_nothing_or_another_layout(tmp_path: Path) -> None:
    """A batch that fills HBM does not fit with less; that is said, and no regret is made up."""
    path = tmp_path / "full.json"
    file = api.plan("llama-3.1-8b", "v5e:2x2", batch=[32], context=8192, top=1)
    path.write_bytes(encode(file))
    found = sensitivity(path, swing=0.5)
    less = of(found, "HBM capacity").less
    assert not less.kept_fits
    assert (less.best, less.regret, less.changed) == (None, None, False)
    assert of(found, "HBM capacity").best_elasticity is None
    assert re.search(r"-50% .* no +nothing fits", render(report(found), "table"))


def test_constants_chip_files_and_programs_are_those_of_the_plan(tmp_path: Path) -> None:
    """A plan at the data sheet's constants on a chip of a file stays there: no launches, no VMEM."""
    chip = msgspec.structs.replace(load_chip("v5e"), name="mine")
    file, path = tmp_path / "mine.toml", tmp_path / "plan.json"
    file.write_bytes(chip_toml(chip))
    path.write_bytes(
        encode(
            api.plan("llama-3.1-8b", "mine:2x2", batch=[8], context=2048, chip_file=file, constants="data-sheet", top=1)
        )
    )
    with pytest.raises(InputError, match="no built-in chip: name its chip file"):
        sensitivity(path)
    found = sensitivity(path, chip_file=file)
    assert {one.quantity for one in found.quantities} == {
        "FLOP/s", "HBM bandwidth", "ICI bandwidth", "hop latency", "HBM capacity",
    }  # fmt: skip
    assert found.regret == 0


def test_fixed_roles_stay_fixed(tmp_path: Path) -> None:
    """With the roles that the plan was made with, no other layout is the best; without them there is one."""
    fix = {"attention": {"X": "B", "Y": "B"}}
    path = tmp_path / "fixed.json"
    path.write_bytes(encode(api.plan("llama-3.1-8b", "v5e:2x2", batch=[8], fix=fix, top=1)))
    assert sensitivity(path, fix=fix).regret == 0
    plan = meshwright.read_plan(path).plans[0]
    kept, best = Subject(plan, *layout_of(plan)).on(parse_slice("v5e:2x2").chip)
    assert best is not None
    assert kept.cost.step_s > best.cost.step_s


def test_roles_do_not_depend_on_the_names_of_mesh_axes() -> None:
    """Two axes of one role are one role over both; idle axes come last, axes of one device not at all."""
    mesh = MeshAxes(axis_names=("X", "Y", "Z", "W"), axis_sizes=(2, 4, 2, 1), pieces=((), (), (), ()))
    layout = ComponentLayout(
        component="attention",
        groups=(0,),
        layers=1,
        program="attention",
        assignment={"X": "N+K", "Y": "-", "Z": "N+K", "W": "D+B"},
    )
    assert layout.roles_over(mesh) == "N+K 4, idle 4"
    assert msgspec.structs.replace(layout, program="mine").roles_over(mesh) == "mine N+K 4, idle 4"


def test_the_report_has_two_lines_for_each_number(found: SensitivityFile) -> None:
    """Each number with its value, less and more, and what decides most comes first below."""
    text = render(report(found), "table")
    assert "HBM bandwidth (820 GB/s)" in text
    assert len(re.findall(r"^.* [-+]20%  ", text, re.MULTILINE)) == 2 * len(found.quantities)
    assert "1% more of a number changes the step by so many percent: HBM bandwidth -0.8" in text
    assert [value_text(of(found, name)) for name in ("FLOP/s", "hop latency", "VMEM")] == [
        "197 TFLOP/s", "1.00 us", "0.134 GB",
    ]  # fmt: skip


def test_the_core_link_is_varied_where_there_is_one() -> None:
    """tpu7x has two cores per chip: their link is a hardware number of its own."""
    chip = load_chip("tpu7x")
    quantity = next(q for q in QUANTITIES if q.name == "core link bandwidth")
    assert quantity.value(chip, "bf16") == chip.core_link_bytes_per_s
    assert chip.core_link_bytes_per_s is not None
    assert quantity.times(chip, 1.2).core_link_bytes_per_s == pytest.approx(1.2 * chip.core_link_bytes_per_s)


def test_a_subject_prices_its_own_plan_again(plans: Path) -> None:
    """The kept layout on its own chip is the plan itself."""
    plan = meshwright.read_plan(plans).plans[0]
    kept, best = Subject(plan, *layout_of(plan)).on(parse_slice("v5e:4x4").chip)
    assert kept == plan
    assert best == plan


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a `meshwright` command."""
    code = meshwright.main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_prints_and_writes_its_schema(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """`--format json` and `-o` are the same file, of a schema that `meshwright schema sensitivity` prints."""
    path, out_path = tmp_path / "plan.json", tmp_path / "sensitivity.json"
    path.write_bytes(encode(api.plan("llama-3.1-8b", "v6e:2x2", batch=[8], context=1024, top=1)))
    code, out, _ = command(capsys, "sensitivity", str(path), "--swing", "0.1", "--format", "json", "-o", str(out_path))
    assert code == 0
    assert out_path.read_text() == out
    read = msgspec.json.decode(out, type=SensitivityFile)
    assert (read.schema, read.swing, read.quantities[0].less.factor) == (SCHEMA, 0.1, 0.9)
    code, out, _ = command(capsys, "schema", "sensitivity")
    assert code == 0
    assert '"elasticity"' in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--swing", "0"), "swing 0: expected a share of at least 0.0001 and below 1"),
        (("--swing", "1e-300"), "swing 1e-300: expected a share of at least 0.0001"),
        (("--swing", "1"), "swing 1: expected a share of at least 0.0001 and below 1"),
        (("--swing", "nan"), "swing nan: expected a share of at least 0.0001 and below 1"),
        (("--swing", "much"), "--swing 'much': expected a number"),
        (("--pick", "7"), "--pick 7: expected a plan of"),
        (("-o", "/none/x.json"), r"cannot write '/none/x\.json'"),
    ],
)
def test_bad_input_is_one_line(
    options: tuple[str, ...], message: str, plans: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each mistake ends with exit code 2 and one line that names it."""
    code, out, err = command(capsys, "sensitivity", str(plans), *options)
    assert (code, out) == (2, "")
    assert re.search(message, err)
    assert err.count("\n") == 1


def test_a_file_without_plans_is_bad_input(tmp_path: Path, plans: Path) -> None:
    """A plan file that holds no plan, and no plan file at all, are said to be so."""
    empty = msgspec.structs.replace(meshwright.read_plan(plans), plans=())
    assert isinstance(empty, PlanFile)
    path = tmp_path / "empty.json"
    path.write_bytes(encode(empty))
    with pytest.raises(InputError, match="holds no plan"):
        sensitivity(path)
    with pytest.raises(InputError, match="cannot read the plan file"):
        sensitivity(tmp_path / "none.json")
