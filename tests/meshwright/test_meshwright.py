"""The `meshwright` command and the public API: what they load, print and return."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from helpers.planned import planned

import meshwright
from meshwright.cli import COMMANDS

ROOT = Path(__file__).parents[2]
SMALL = ["llama-3.1-8b", "--slice", "v5e:2x2", "--weights", "int8", "--kv", "int8", "--context", "1024"]
HEAVY = ("numpy", "networkx", "ortools", "jax", "tabulate", "rich")


def run(code: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a fresh interpreter that finds our packages."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, env=variables, timeout=60
    )


def out(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command prints to stdout; it must succeed and say nothing on stderr."""
    code = meshwright.main(arguments)
    said = capsys.readouterr()
    assert (code, said.err) == (0, "")
    return said.out


def test_import_loads_nothing_heavy() -> None:
    """`import meshwright` loads no numpy, networkx, ortools, jax, tabulate or click."""
    code = f"import meshwright, sys; print(sorted({{*{HEAVY}, 'click'}} & set(sys.modules)))"
    assert run(code).stdout == "[]\n"


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    """Help and version load no numpy, networkx, ortools, jax or tabulate."""
    code = f"import meshwright, sys; meshwright.main({arguments}); print(sorted({{*{HEAVY}}} & set(sys.modules)))"
    done = run(code)
    assert (done.stdout.splitlines()[-1], done.stderr) == ("[]", "")


def test_only_the_command_that_is_called_is_imported() -> None:
    """A command loads the module that it is in, and no other with commands."""
    homes = {*COMMANDS.values()}
    code = f"import meshwright, sys; meshwright.main(['chips']); print([*filter({homes}.__contains__, sys.modules)])"
    assert run(code).stdout.splitlines()[-1] == "['meshwright.commands.info']"


def test_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` says what `meshwright.__version__` says."""
    assert out(capsys, "--version") == f"meshwright {meshwright.__version__}\n"


def test_public_names_resolve() -> None:
    """Every name of the public API can be had, and others give the usual AttributeError."""
    for name in meshwright._HOMES:
        assert getattr(meshwright, name).__name__ == name
        assert name in dir(meshwright)
    with pytest.raises(AttributeError, match="module 'meshwright' has no attribute 'nonsense'"):
        _ = meshwright.nonsense


def test_api_plans_like_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """`meshwright.plan` returns what the command prints as JSON."""
    mine = planned("llama-3.1-8b", "v5e:2x2", batch=(8,), context=1024, weights="int8", kv="int8")
    theirs = json.loads(out(capsys, "plan", *SMALL, "--batch", "8", "--format", "json"))
    assert msgspec.json.decode(msgspec.json.encode(mine.plans)) == theirs["plans"]


def test_api_takes_objects_and_fixed_roles() -> None:
    """`meshwright.plan` takes a loaded model and slice, and roles by component and torus axis."""
    found = meshwright.plan(
        meshwright.load_model("llama-3.1-8b"),
        meshwright.parse_slice("v5e:2x2"),
        batch=[8],
        weights="int8",
        fix={"attention": {"X": "B", "Y": "B"}},
    )
    layout = next(lay for lay in found.plans[0].layouts if lay.component == "attention")
    assert {role.partition("+")[2] for role in layout.assignment.values()} == {"B"}


def test_json_is_the_file_and_the_same_on_every_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """stdout and `-o` have the same bytes, and a second run differs in its own times only."""
    arguments = ["plan", *SMALL, "--batch", "1,8", "--format", "json"]
    first = out(capsys, *arguments, "-o", str(tmp_path / "plan.json"))
    second = out(capsys, *arguments)
    assert (tmp_path / "plan.json").read_text("utf-8") == first
    assert _without_wall_s(first) == _without_wall_s(second)
    assert list(json.loads(first)) == ["schema", "tool_version", "objective", "plans", "rejected", "search", "notes"]


def _without_wall_s(text: str) -> list[str]:
    return [line for line in text.splitlines() if '"wall_s"' not in line and '"evaluations_per_s"' not in line]


def test_written_plan_can_be_read_explained_and_priced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan file is read back, explained, and priced as a layout to the same step time."""
    file = str(tmp_path / "plan.json")
    out(capsys, "plan", *SMALL, "--batch", "8", "--top", "2", "-o", file)
    plans = meshwright.read_plan(Path(file)).plans
    explained = out(capsys, "explain", file, "--pick", "2", "--format", "json")
    priced = out(capsys, "price", *SMALL, "--batch", "8", "--layout", file, "--pick", "2", "--format", "json")
    assert json.loads(explained)["cost"]["step_s"] == plans[1].cost.step_s
    assert json.loads(priced)["plans"][0]["cost"]["step_s"] == pytest.approx(plans[1].cost.step_s)


def test_options_repeat_or_take_commas(capsys: pytest.CaptureFixture[str]) -> None:
    """`--batch 1 --batch 8` is `--batch 1,8`, and both slices are searched."""
    commas = out(capsys, "plan", *SMALL, "--slice", "v5e:2x4", "--batch", "1,8", "--top", "1", "--format", "json")
    repeated = out(
        capsys, "plan", *SMALL, "--slice", "v5e:2x4", "--batch", "1", "--batch", "8", "--top", "1", "--format", "json"
    )
    assert _without_wall_s(commas) == _without_wall_s(repeated)
    found = {(plan["slice"], plan["batch"]) for plan in json.loads(commas)["plans"]}
    assert found == {("v5e:2x2", 1), ("v5e:2x2", 8), ("v5e:2x4", 1), ("v5e:2x4", 8)}


def test_default_batches_are_powers_of_two(capsys: pytest.CaptureFixture[str]) -> None:
    """Without `--batch`, the roofline lists 1, 2, 4, ..., 256."""
    table = json.loads(out(capsys, "roofline", "llama-3.1-8b", "--slice", "v5e:2x4", "--format", "json"))
    assert [row["batch"] for row in table["rows"]] == [1, 2, 4, 8, 16, 32, 64, 128, 256]


def test_prefill_plans_the_whole_batch(capsys: pytest.CaptureFixture[str]) -> None:
    """A prefill plan's tokens per second are those of all prompts in its time."""
    text = out(capsys, "plan", *SMALL, "--phase", "prefill", "--batch", "2", "--top", "1", "--format", "json")
    best = json.loads(text)["plans"][0]
    assert best["throughput"]["tokens_per_s"] == pytest.approx(2 * 1024 / best["cost"]["step_s"])


def test_nothing_fits_says_why_and_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, the reason and the smallest slice that fits on stderr, the rejected groups on stdout."""
    code = meshwright.main(["plan", "llama-3.1-70b", "--slice", "v5e:2x2", "--weights", "int8", "--batch", "1"])
    said = capsys.readouterr()
    assert code == 1
    assert said.err.startswith("meshwright: llama-3.1-70b does not fit on v5e:2x2: at batch 1 it needs ")
    assert said.err.endswith("; the smallest slice of that chip on which it fits is v5e:2x4\n")
    assert "needs more than the usable HBM" in said.out


def test_nothing_fits_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """As JSON there are no plans, the rejected groups, and the smallest slice."""
    arguments = ["plan", "llama-3.1-70b", "--slice", "v5e:2x2", "--weights", "int8", "--batch", "1"]
    assert meshwright.main([*arguments, "--format", "json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["plans"] == []
    assert said["rejected"]
    assert said["nothing_fits"]["smallest_slice"] == "v5e:2x4"


def test_given_layout_that_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pricing a layout beyond HBM prints its price and exits 1."""
    file = str(tmp_path / "plan.json")
    out(capsys, "plan", *SMALL, "--batch", "64", "--top", "1", "-o", file)
    assert meshwright.main(["price", *SMALL, "--batch", "65536", "--layout", file]) == 1
    said = capsys.readouterr()
    assert said.err == "meshwright: this layout does not fit at any batch\n"
    assert "batch 65536 does not fit: it needs " in said.out


def test_roofline_of_the_chapter(capsys: pytest.CaptureFixture[str]) -> None:
    """The table of llama-2-13b shows where HBM ends."""
    text = out(
        capsys, "roofline", "llama-2-13b", "--slice", "v5e:2x4", "--context", "8192", "--batch", "1,8,16,32,64,240"
    )
    text = " ".join(text.split())
    assert text.count(" NO ") == 3
    assert "135.27 GB are usable on v5e:2x4: the largest batch that fits is 16, before activations" in text


def test_models_and_chips_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    """`models` and `chips` list all, and show one in full."""
    assert "llama-3.1-70b" in out(capsys, "models")
    assert "parameters: 70,553,706,496" in out(capsys, "models", "llama-3.1-70b")
    assert json.loads(out(capsys, "models", "llama-3.1-70b", "--format", "json"))["D"] == 8192
    assert "v5e" in out(capsys, "chips")
    shown = out(capsys, "chips", "v5e", "--format", "markdown")
    assert "| v5e:8x16 " in shown
    assert "jax-ml/scaling-book tpus.md" in shown


def test_model_from_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder with a Hugging Face config is a model."""
    config = {
        "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 4, "intermediate_size": 512, "vocab_size": 1024,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    shown = json.loads(out(capsys, "models", str(tmp_path), "--format", "json"))
    assert (shown["D"], shown["groups"][0]["count"]) == (256, 2)


def test_schema_of_a_plan_describes_what_plan_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON Schema names every field of a plan file; as a table it has a line for each."""
    schema = json.loads(out(capsys, "schema", "plan"))
    assert {"schema", "plans", "rejected", "search"} <= set(schema["$defs"]["PlanFile"]["required"])
    assert "upper_bound_s" in out(capsys, "schema", "--format", "table")


def test_shadowing_folder_is_named(tmp_path: Path) -> None:
    """A user's own `planner` that comes first is named in one line, with exit code 2."""
    (tmp_path / "planner").mkdir()
    (tmp_path / "planner" / "__init__.py").touch()
    code = "import meshwright, sys; sys.exit(meshwright.main(['models']))"
    done = run(code, cwd=tmp_path)  # with -c, the current folder comes first
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"meshwright: '{tmp_path}/planner/__init__.py' shadows meshwright's own package 'planner' in '{ROOT}'; rename "
        "it, take it off PYTHONPATH, or run from another folder\n"
    )


def test_shadowing_module_stops_the_api(tmp_path: Path) -> None:
    """A user's own `mesh.py` makes the API raise ImportError naming it."""
    (tmp_path / "mesh.py").touch()
    done = run("import meshwright; meshwright.load_chip('v5e')", cwd=tmp_path)
    assert f"ImportError: '{tmp_path}/mesh.py' shadows meshwright's own package 'mesh'" in done.stderr


def test_folder_without_init_does_not_shadow(tmp_path: Path) -> None:
    """A user's folder `planner` without `__init__.py` does no harm."""
    (tmp_path / "planner").mkdir()
    assert run("import meshwright, sys; sys.exit(meshwright.main(['chips']))", cwd=tmp_path).returncode == 0
