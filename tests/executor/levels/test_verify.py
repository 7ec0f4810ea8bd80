"""`verify`: levels, exit codes and the report, on a plan made in the test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers.planned import planned

import executor.levels.verify as module
import meshwright
from executor.devices import Unavailable
from executor.verdict import Finding, Level, verdict
from planner.plan.planfile import encode


@pytest.fixture(scope="module")
def plan_text() -> str:
    """A plan of Llama-3.1-8B on four chips, as the command writes it."""
    return encode(planned("llama-3.1-8b", "v5e:2x2", batch=(8,), context=1024, top=1)).decode()


@pytest.fixture
def plan_path(plan_text: str, tmp_path: Path) -> Path:
    """The plan in a file."""
    path = tmp_path / "plan.json"
    path.write_text(plan_text)
    return path


def passing(*_: object, **__: object) -> Level:
    """A level at which all holds."""
    return verdict("numerics", "manual", 3, (), ("a note",))


def failing(*_: object, **__: object) -> Level:
    """A level that finds something."""
    return verdict("numerics", "manual", 3, (Finding(what="Q", promised="1", found="2 < 3"),))


def impossible(*_: object, **__: object) -> Level:
    """A level that cannot run."""
    raise Unavailable("no compiler here; pip install 'meshwright[tpu]'")


def levels(monkeypatch: pytest.MonkeyPatch, **runners: Callable[..., Level]) -> None:
    """Replace the levels by these."""
    known = {"numerics": passing, "collectives": passing, "tpu-compiler": passing}
    found = known | {name.replace("_", "-"): run for name, run in runners.items()}
    monkeypatch.setattr(module, "judge_of", lambda level, mode: found[level])


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    code = meshwright.main(["verify", *arguments])
    out, err = capfd.readouterr()
    return code, out, err


def test_a_plan_whose_levels_all_hold_exits_0(
    monkeypatch: pytest.MonkeyPatch, plan_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every level that ran holds, and at least one ran."""
    levels(monkeypatch)
    code, out, err = run(capfd, str(plan_path), "--format", "json")
    report = json.loads(out)
    assert (code, err, report["schema"], report["holds"]) == (0, "", "meshwright.report/1", True)
    assert [(r["level"], r["status"]) for r in report["levels"]] == [
        ("plan", "passed"), ("numerics", "passed"), ("numerics", "passed"), ("numerics", "passed"),
    ]  # fmt: skip


def test_a_broken_promise_exits_1_and_is_named(
    monkeypatch: pytest.MonkeyPatch, plan_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Tensor, promised and found are printed."""
    levels(monkeypatch, numerics=failing)
    code, out, _ = run(capfd, str(plan_path), "--level", "numerics")
    assert code == 1
    assert ["Q", "1", "2", "<", "3"] in [line.split() for line in out.splitlines()]
    assert out.endswith("the plan does NOT hold\n")


def test_a_default_level_that_cannot_run_is_skipped_and_not_passed(
    monkeypatch: pytest.MonkeyPatch, plan_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With every level skipped nothing ran, so the plan does not hold."""
    levels(monkeypatch, tpu_compiler=impossible)
    code, out, _ = run(capfd, str(plan_path))
    assert code == 0
    assert "skipped" in out
    levels(monkeypatch, numerics=impossible, collectives=impossible, tpu_compiler=impossible)
    code, out, _ = run(capfd, str(plan_path))
    assert code == 1


def test_a_level_asked_for_that_cannot_run_exits_2(
    monkeypatch: pytest.MonkeyPatch, plan_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line says what is missing and how to get it."""
    levels(monkeypatch, tpu_compiler=impossible)
    code, out, err = run(capfd, str(plan_path), "--level", "tpu-compiler")
    assert (code, out) == (2, "")
    assert err == (
        "meshwright: level 'tpu-compiler' cannot run here: no compiler here; pip install 'meshwright[tpu]'\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--level", "vibes"),
            "level 'vibes' is not known; expected one of numerics, collectives, tpu-compiler, timing",
        ),
        (("--mode", "magic"), "mode 'magic' is not known; expected one of manual, automatic, unconstrained, both"),
        (("--format", "pdf"), "--format 'pdf': expected table, json, junit or markdown"),
    ],
)
def test_bad_options_are_one_line(
    arguments: tuple[str, ...], message: str, plan_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Unknown levels, modes and formats name what is known."""
    assert run(capfd, str(plan_path), *arguments) == (2, "", f"meshwright: {message}\n")


def test_junit_has_one_case_per_level(
    monkeypatch: pytest.MonkeyPatch, plan_path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Failures, skips and their reasons are there, in the file and on stdout alike."""
    levels(monkeypatch, numerics=failing, tpu_compiler=impossible)
    code, out, _ = run(capfd, str(plan_path), "--format", "junit", "-o", str(tmp_path / "report.xml"))
    assert code == 1
    assert (tmp_path / "report.xml").read_text() == out
    suite = ElementTree.fromstring(out)
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("4", "1", "1")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.text == "Q: promised 1, found 2 < 3"


def test_a_report_that_cannot_be_written_is_still_printed(
    monkeypatch: pytest.MonkeyPatch, plan_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The verdict is not lost, and the exit code says bad input."""
    levels(monkeypatch)
    code, out, err = run(capfd, str(plan_path), "-o", "/nonexistent/report.json")
    assert code == 2
    assert "the plan does what was promised" in out
    assert err.startswith("meshwright: cannot write '/nonexistent/report.json': ")


EDITS = {
    "a weight's spec": ("specs/attention|WQ", "axes"),
    "the weights' bytes": ("memory", "weights_bytes"),
    "the step's seconds": ("cost", "step_s"),
    "the chips": ("", "chips"),
    "the devices": ("", "devices"),
}


@pytest.mark.parametrize("what", EDITS)
def test_an_edited_plan_fails_at_level_plan(
    what: str, monkeypatch: pytest.MonkeyPatch, plan_text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What does not follow from the layouts is a finding, and no further level runs."""
    levels(monkeypatch)
    parents, last = EDITS[what]
    value = json.loads(plan_text)
    owner = value["plans"][0]
    for part in filter(None, parents.split("/")):
        owner = owner[part.replace("|", "/")]
    owner[last] = [[], [], []] if last == "axes" else owner[last] * 2
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(value))
    code, out, _ = run(capfd, str(path), "--format", "json")
    report = json.loads(out)
    assert code == 1
    assert [r["level"] for r in report["levels"]] == ["plan"]
    assert any(last in finding["what"] for finding in report["levels"][0]["findings"])


def test_the_real_levels_pass_on_a_real_plan(plan_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Numerics and collectives run on the host's devices, and hold."""
    code, out, _ = run(capfd, str(plan_path), "--level", "numerics,collectives", "--format", "json")
    report = json.loads(out)
    assert code == 0, report
    assert all(r["checked"] > 0 and r["status"] == "passed" for r in report["levels"])
