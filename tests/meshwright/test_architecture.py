"""The structure of the code: imports run one way, and nothing but the executor needs jax."""

import ast
import subprocess
import sys
from collections.abc import Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ORDER = ("mesh", "strategies", "planner", "executor", "meshwright")
MOST_FLOORS, MOST_FILES = 8, 16


def imported_packages(file: Path) -> set[str]:
    """Top-level names of our packages that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", ORDER[:-1])
def test_imports_run_one_way(package: str) -> None:
    """A package imports only itself and those before it."""
    later = set(ORDER[ORDER.index(package) + 1 :])
    files = sorted((ROOT / package).glob("**/*.py"))
    assert files
    for file in files:
        assert not imported_packages(file) & later, file


def modules_of(package: str, file: Path) -> set[str]:
    """The package's own modules and folders that a file imports, anywhere in it, as dotted names."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    paths = {name: ROOT / name.replace(".", "/") for name in names if name.startswith(f"{package}.")}
    return {name for name, path in paths.items() if path.with_suffix(".py").exists() or path.is_dir()}


def rooms_of(package: str) -> dict[str, set[str]]:
    """By room (a folder of the package, or a module beside them) the other rooms that it imports."""
    rooms: dict[str, set[str]] = {}
    for file in sorted((ROOT / package).glob("**/*.py")):
        room = file.relative_to(ROOT / package).parts[0].removesuffix(".py")
        if room != "__init__":
            imported = {name.split(".")[1] for name in modules_of(package, file)}
            rooms.setdefault(room, set()).update(imported - {room})
    return rooms


def longest_chain(rooms: Mapping[str, set[str]]) -> list[str]:
    """Rooms of which each imports the next, as many as there are; raises `CycleError` where some import each other."""
    chains: dict[str, list[str]] = {}
    for room in TopologicalSorter(rooms).static_order():
        below = [chains[other] for other in sorted(rooms.get(room, ()))]
        chains[room] = [room, *max(below, key=len, default=[])]
    return max(chains.values(), key=len)


@pytest.mark.parametrize("package", ORDER)
def test_rooms_import_one_way_and_are_few_floors(package: str) -> None:
    """A package's rooms can be put in an order in which each imports only those before it, in chains of at most 8."""
    chain = longest_chain(rooms_of(package))
    assert len(chain) <= MOST_FLOORS, " -> ".join(chain)


@pytest.mark.parametrize("package", ORDER)
def test_folders_hold_few_files(package: str) -> None:
    """No folder of a package holds more than 16 modules: more are several subjects."""
    for folder in (ROOT / package, *(path for path in (ROOT / package).glob("**/") if path.is_dir())):
        modules = [file.name for file in folder.glob("*.py") if file.name != "__init__.py"]
        assert len(modules) <= MOST_FILES, (folder, len(modules))


@pytest.mark.parametrize("package", ["mesh", "strategies", "planner", "executor"])
def test_folders_load_nothing_of_themselves(package: str) -> None:
    """Their `__init__.py` hold a docstring and nothing else: a module is loaded where it is used."""
    for file in (ROOT / package).glob("**/__init__.py"):
        assert len(ast.parse(file.read_text(encoding="utf-8")).body) == 1, file


def test_the_plain_price_takes_nothing_from_the_search() -> None:
    """What prices one layout, and so distrusts the search, imports neither it nor the tables over many rows."""
    for file in (*(ROOT / "strategies" / "readers").glob("*.py"), ROOT / "strategies" / "layout.py"):
        assert not {name for name in modules_of("strategies", file) if name.startswith("strategies.tables")}, file
    for file in (ROOT / "planner" / "plan").glob("*.py"):
        assert not {name for name in modules_of("planner", file) if name.startswith("planner.search")}, file
        assert not {name for name in modules_of("strategies", file) if name.startswith("strategies.tables")}, file


def test_the_search_of_the_oracle_takes_the_spaces_of_the_search_and_nothing_else() -> None:
    """Brute force shares meshes, batches, problem and choice with the search: no table, row, boundary or bound."""
    file = ROOT / "tests" / "oracles" / "bruteforce.py"
    shared = {name for name in modules_of("planner", file) if name.startswith("planner.search.")}
    assert shared == {"planner.search.meshes", "planner.search.problem", "planner.search.search"}
    from_search = [
        alias.name
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "planner.search.search"
        for alias in node.names
    ]
    assert from_search == ["columns"]
    assert not {name for name in modules_of("strategies", file) if name.startswith("strategies.tables")}


@pytest.mark.parametrize("package", ["mesh", "strategies", "planner"])
def test_only_the_executor_imports_jax(package: str) -> None:
    """No module below the executor names jax in an import."""
    for file in sorted((ROOT / package).glob("**/*.py")):
        assert "jax" not in imported_packages(file), file


def test_planning_loads_neither_jax_nor_the_solver_nor_networkx() -> None:
    """Importing all that a plan needs leaves jax, ortools and networkx unloaded."""
    code = "import planner.best.solve, sys; print(sorted({'jax', 'ortools', 'networkx'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert run.stdout.strip() == "[]"


def test_no_test_folder_shadows_a_package() -> None:
    """tests/ holds no package named like one of ours."""
    assert not [p for name in ORDER for p in (ROOT / "tests").glob(f"{name}/__init__.py")]


def test_no_code_knows_a_chip_by_its_name() -> None:
    """What is special about a chip is in its file: no string in the code is the name of a built-in chip."""
    chips = {file.stem for file in (ROOT / "mesh" / "data" / "chips").glob("*.toml")}
    assert "tpu7x" in chips
    for file in (file for package in ORDER for file in (ROOT / package).glob("**/*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        assert not {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)} & chips, file


PLANNED = """
import ast, sys
from pathlib import Path
from meshwright.cli import main

called = set()
sys.setprofile(lambda frame, event, _: called.add(frame.f_code) if event == "call" else None)
code = main(sys.argv[1:])
sys.setprofile(None)
classes = {
    file: {node.name for node in ast.walk(ast.parse(Path(file).read_text("utf-8"))) if isinstance(node, ast.ClassDef)}
    for file in {one.co_filename for one in called}
    if file.startswith(str(Path.cwd()) + "/") and ".venv" not in file
}
for file in sorted({c.co_filename for c in called if c.co_name not in {"<module>", *classes.get(c.co_filename, ())}}):
    if file in classes:
        print("called", Path(file).relative_to(Path.cwd()).as_posix())
sys.exit(code)
"""


def test_a_plan_is_made_by_few_modules_and_none_of_other_questions() -> None:
    """From the words on the command line to the printed table: what a reader of `plan` has to read, hardware, programs
    and search apart."""
    arguments = ["plan", "llama-3.1-8b", "--slice", "v5e:2x2", "--batch", "8"]
    run = subprocess.run(
        [sys.executable, "-c", PLANNED, *arguments], capture_output=True, text=True, cwd=ROOT, check=True
    )
    called = [line.split()[1] for line in run.stdout.splitlines() if line.startswith("called ")]
    assert not [file for file in called if file.startswith(("planner/serve", "planner/fleet")) or "transfer" in file]
    ours = [file for file in called if not file.startswith(("strategies/", "mesh/", "planner/search/"))]
    assert "planner/best/solve.py" in ours
    assert len(ours) <= 20, ours
