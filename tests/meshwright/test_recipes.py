"""docs/architecture.md beside the code: its rooms, names, arrows, and its recipes, each applied."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("mesh", "strategies", "planner", "executor", "meshwright")
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
RECIPES = {
    what: (int(count), body)
    for what, count, body in re.findall(r"^### To add a (\w+): (\d+) files?\n(.*?)(?=^##|\Z)", PAGE, re.S | re.M)
}
ARROWS = re.findall(r"^ +([\w.]+) -->(?:\|(\w+)\|)? ([\w.]+)$", PAGE, re.MULTILINE)
NAMES = sorted(
    {n for a, _, b in ARROWS for n in (a, b)} | set(re.findall(rf"`((?:{'|'.join(PACKAGES)})\.[\w.]+)`", PAGE))
)
PLAN = (
    "plan",
    "llama-3.1-8b",
    "--weights",
    "int8",
    "--batch",
    "1",
    "--context",
    "1024",
    "--top",
    "1",
    "--workers",
    "1",
)
JSON = ("--format", "json")


def module_of(name: str) -> tuple[Path, str]:
    """The file of a dotted name, and the name in it (empty where the name is a module's)."""
    parts = name.split(".")
    for used in range(len(parts), 0, -1):
        file = ROOT.joinpath(*parts[:used]).with_suffix(".py")
        if file.exists():
            return file, ".".join(parts[used:])
    raise AssertionError(f"{name}: no such module")


def words_of(name: str) -> set[str]:
    """The words of the module of a dotted name."""
    return set(re.findall(r"\w+", module_of(name)[0].read_text("utf-8")))


def defined(file: Path) -> Iterator[str]:
    """Names that a module defines at its top level."""
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


@pytest.mark.parametrize("name", NAMES)
def test_every_name_on_the_page_is_defined_where_it_says(name: str) -> None:
    """A dotted name is a module, or what that module defines itself."""
    file, rest = module_of(name)
    assert not rest or rest in defined(file)


def test_every_arrow_is_a_use() -> None:
    """The module at an arrow's tail names what is at its head, and the module there the value that comes back."""
    assert len(ARROWS) > 40
    for tail, label, head in ARROWS:
        assert head.rpartition(".")[2] in words_of(tail), (tail, head)
        assert not label or label in words_of(head), (head, label)


def test_the_tree_lists_every_room_once() -> None:
    """Of every package the folders, and the modules beside them; the packages in the order of imports."""
    tree = PAGE.partition("## The tree")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.*?) \| .* \|$", tree, re.MULTILINE)[1:]
    listed: dict[str, list[str]] = {}
    for row in rows:
        if package := re.fullmatch(r"\*\*(\w+)\*\*", row):
            listed[package[1]] = []
        else:
            listed[list(listed)[-1]] += re.findall(r"`(.*?)`", row)
    assert tuple(listed) == PACKAGES
    for package, rooms in listed.items():
        there = [f"{path.name}/" for path in (ROOT / package).iterdir() if path.is_dir() and path.name != "__pycache__"]
        there += [path.stem for path in (ROOT / package).glob("*.py") if path.stem != "__init__"]
        assert sorted(rooms) == sorted(there), package


def applied(what: str, tmp_path: Path, made: dict[str, str] | None = None) -> Path:
    """A copy of the packages with a recipe applied; `made`: texts of new files that the page describes.

    What differs from the original are exactly the files that the page names, as many as its heading says.
    """
    count, body = RECIPES[what]
    copy = tmp_path / "copy"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("*.pyc.*"))
    named = []
    for path, blocks in re.findall(r"^- `(.*?)`:.*\n((?:```\w+\n(?:.*\n)*?```\n)*)", body, re.MULTILINE):
        named.append(path)
        for kind, text in re.findall(r"^```(\w+)\n(.*?)^```", blocks, re.S | re.M):
            change(copy / path, kind, text)
    for path, text in (made or {}).items():
        (copy / path).write_text(text, "utf-8")
    assert differing(copy) == sorted(named)
    assert len(named) == count
    return copy


def change(file: Path, kind: str, text: str) -> None:
    """Apply a block of the page to a file of the copy."""
    if kind == "diff":
        before = "".join(line[1:] for line in text.splitlines(keepends=True) if line[0] in " -")
        after = "".join(line[1:] for line in text.splitlines(keepends=True) if line[0] in " +")
        was = file.read_text("utf-8")
        assert was.count(before) == 1, (file, before)
        file.write_text(was.replace(before, after), "utf-8")
    elif file.exists():
        file.write_text(f"{file.read_text('utf-8')}\n\n{text}", "utf-8")
    else:
        file.write_text(text, "utf-8")


def differing(copy: Path) -> list[str]:
    """Files of the copy that are not as in the original."""

    def files(root: Path) -> dict[str, bytes]:
        every = (path for package in PACKAGES for path in (root / package).rglob("*") if path.is_file())
        return {str(path.relative_to(root)): path.read_bytes() for path in every if path.parent.name != "__pycache__"}

    ours, theirs = files(ROOT), files(copy)
    return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))


def python(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run python where the copy's packages are found, and not the original's."""
    env = {**os.environ, "PYTHONPATH": str(copy)}
    return subprocess.run([sys.executable, *arguments], cwd=copy, env=env, capture_output=True, text=True)


def plan_of(copy: Path, *arguments: str) -> dict[str, object]:
    """The best plan of `meshwright plan` of the copy, as JSON."""
    done = python(copy, "-m", "meshwright", *PLAN, *JSON, *arguments)
    assert done.returncode == 0, done.stderr
    best: dict[str, object] = json.loads(done.stdout)["plans"][0]
    return best


def programs_of(plan: dict[str, object]) -> dict[str, str]:
    """The program of every component of a plan."""
    layouts = plan["layouts"]
    assert isinstance(layouts, list)
    return {layout["component"]: layout["program"] for layout in layouts}


def test_a_new_chip_is_planned_on(tmp_path: Path) -> None:
    """A file of data is a chip: its slices are known, and a layout is chosen there."""
    v5e = (ROOT / "mesh/data/chips/v5e.toml").read_text("utf-8")
    assert '\nname = "v5e"\n' in v5e
    copy = applied("chip", tmp_path, {"mesh/data/chips/v5x.toml": v5e.replace('\nname = "v5e"\n', '\nname = "v5x"\n')})
    assert plan_of(copy, "--slice", "v5x:2x2")["slice"] == "v5x:2x2"


def test_a_new_model_is_planned(tmp_path: Path) -> None:
    """A table of data is a built-in model."""
    copy = applied("model", tmp_path)
    done = python(copy, "-m", "meshwright", "plan", "tiny-1b", *PLAN[2:], *JSON, "--slice", "v5e:2x2")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["plans"][0]["model"]["D"] == 2048


def test_a_new_program_joins_the_search(tmp_path: Path) -> None:
    """A `.layout` file is one more program that the search chooses from: it is priced where its role is asked for."""
    text = (ROOT / "docs/how-to/your-own-strategy.md").read_text("utf-8").partition("## A complete example")[2]
    (program,) = re.findall(r"```layout\n(.*?)```", text, re.DOTALL)
    copy = applied("program", tmp_path, {"strategies/programs/gathered.layout": program})
    plan = plan_of(copy, "--batch", "2", "--cuts", "none", "--slice", "v5e:2x2", "--fix", "mlp=X:D*+B,Y:F")
    assert programs_of(plan)["mlp"] == "mlp-gathered"


TOY = """
program mlp-toy
phase: decode
component: mlp
roles: X=TOY Y=F
weights: Wi Wg Wo
requires: X
input: n[B, D_X]
output: o[B, D_X] {U_Y}
body
h[B, F_Y] {U_X} = n[B, D_X] * Wi[D_X, F_Y]
h[B, F_Y] = GatherSum_X(h[B, F_Y] {U_X})
u[B, F_Y] {U_X} = n[B, D_X] * Wg[D_X, F_Y]
u[B, F_Y] = GatherSum_X(u[B, F_Y] {U_X})
a[B, F_Y] = SwiGLU(u[B, F_Y], h[B, F_Y])
o[B, D_X] {U_Y} = a[B, F_Y] * Wo[F_Y, D_X]
"""
RUN = """
import sys, jax, jax.numpy as jnp
from executor.run.context import Context
from executor.run.steps import STEPS
from strategies.checker import check
from strategies.layoutfile import parse_layout
from strategies.notation import LayoutError, parse_step
try:
    check(*parse_layout(sys.argv[1].replace("u[B, F_Y] = GatherSum_X", "u[B, F] = GatherSum_X")))
except LayoutError as error:
    print(error)
step = parse_step("h[B] = GatherSum_X(h[B] {U_X})", 1, "")
one = lambda x: STEPS["GatherSum"](step, Context(axes={"X": 2}), (x,))[0]
print(jax.vmap(one, axis_name="X")(jnp.array([[1.0, 2.0], [3.0, 4.0]])).tolist())
"""


def test_a_new_primitive_is_checked_priced_and_run(tmp_path: Path) -> None:
    """A program that uses it is planned, at the bytes of its price; each device gets the sum over all."""
    copy = applied("primitive", tmp_path)
    (tmp_path / "toy.layout").write_text(TOY)
    given = ("--slice", "v5e:2x2", "--program", str(tmp_path / "toy.layout"), "--fix", "mlp=X:TOY,Y:F")
    plan = plan_of(copy, *given)
    assert programs_of(plan)["mlp"] == "mlp-toy"
    cost = plan["cost"]
    assert isinstance(cost, dict)
    moved = [(comm["kind"], comm["bytes"]) for s in cost["steps"] if s["op"] == "GatherSum" for comm in s["comms"]]
    assert moved == 2 * [("AllGather", 2 * 14336 / 2 * 2)]  # from 2 devices half of F each, in bf16
    said, summed = python(copy, "-c", RUN, TOY).stdout.splitlines()
    assert "GatherSum: keeps the cut" in said
    assert summed == "[[4.0, 6.0], [4.0, 6.0]]"


def test_a_new_command_runs(tmp_path: Path) -> None:
    """It is listed, has help, and is read and printed as the others."""
    copy = applied("command", tmp_path)
    assert python(copy, "-m", "meshwright", "devices", "--slice", "tpu7x:2x2x1").stdout == "8\n"
    assert "Print how many devices a slice has." in python(copy, "-m", "meshwright", "--help").stdout


def test_a_new_target_is_an_option_filters_and_is_named(tmp_path: Path) -> None:
    """`plan` offers and obeys it, and where no plan meets it says so; a fleet, which has no such figure, refuses it."""
    copy = applied("target", tmp_path)
    script = f"""
from meshwright.cli import main
from planner.query.targets import Targets
plan = {[*PLAN, "--slice", "v5e:2x2"]!r}
for more in (["--help"], ["--min-tokens-per-s-per-chip", "1"], ["--min-tokens-per-s-per-chip", "1e6"]):
    print("exit", main([*plan, *more]), flush=True)
import meshwright
try:
    meshwright.fleet("llama-3.1-8b", {{"v5e": 4}}, {{"requests_per_s": 1, "input": 8, "output": 8}},
                     targets=Targets(min_tokens_per_s_per_chip=1))
except meshwright.InputError as error:
    print(error)
"""
    done = python(copy, "-c", script)
    assert re.findall(r"^exit (\d)", done.stdout, re.MULTILINE) == ["0", "0", "1"]
    assert "--min-tokens-per-s-per-chip" in done.stdout
    assert "no plan meets at least 1e+06 tokens/s per chip; the nearest has " in done.stderr
    assert "a fleet's targets are a step's and the first token's seconds" in done.stdout


def test_every_recipe_has_a_test() -> None:
    """The recipes of the page are those above."""
    assert set(RECIPES) == {"chip", "model", "program", "primitive", "command", "target"}
