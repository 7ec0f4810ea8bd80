"""The structure of the code: imports run one way, and nothing but the executor needs jax."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ORDER = ("mesh", "strategies", "planner", "executor", "meshwright")


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


def planner_modules(file: Path) -> set[str]:
    """Modules of the planner that a file imports, anywhere in it, as paths without their end."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    paths = {name.replace(".", "/") for name in names if name.startswith("planner.")}
    return {path for path in paths if (ROOT / f"{path}.py").exists()}


def test_folders_of_the_planner_import_one_way() -> None:
    """Its folders and the modules beside them can be put in an order in which each imports only those before it."""

    def place(path: str) -> str:
        return "/".join(path.split("/")[:2])

    imports: dict[str, set[str]] = {}
    for file in sorted((ROOT / "planner").glob("**/*.py")):
        here = place(file.relative_to(ROOT).with_suffix("").as_posix())
        imports.setdefault(here, set()).update({place(path) for path in planner_modules(file)} - {here})
    assert imports["planner/searching"] == {"planner/norms"}
    TopologicalSorter(imports).prepare()  # raises where there is a circle


def test_folders_of_the_planner_load_nothing_of_themselves() -> None:
    """Their `__init__.py` hold a docstring and nothing else: a module is loaded where it is used."""
    for file in (ROOT / "planner").glob("**/__init__.py"):
        assert len(ast.parse(file.read_text(encoding="utf-8")).body) == 1, file


def test_no_code_knows_a_chip_by_its_name() -> None:
    """What is special about a chip is in its file: no string in the code is the name of a built-in chip."""
    chips = {file.stem for file in (ROOT / "mesh" / "data" / "chips").glob("*.toml")}
    assert "tpu7x" in chips
    files = [file for package in ORDER[:-1] for file in (ROOT / package).glob("**/*.py")]
    for file in (ROOT / "meshwright.py", *files):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        assert not {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)} & chips, file


@pytest.mark.parametrize("package", ["mesh", "strategies", "planner"])
def test_only_the_executor_imports_jax(package: str) -> None:
    """No module below the executor names jax in an import."""
    for file in sorted((ROOT / package).glob("**/*.py")):
        assert "jax" not in imported_packages(file), file


def test_planning_loads_neither_jax_nor_the_solver_nor_networkx() -> None:
    """Importing all that a plan needs leaves jax, ortools and networkx unloaded."""
    code = "import planner.solve, sys; print(sorted({'jax', 'ortools', 'networkx'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert run.stdout.strip() == "[]"


def test_no_test_folder_shadows_a_package() -> None:
    """tests/ holds no package named like one of ours."""
    assert not [p for name in ORDER for p in (ROOT / "tests").glob(f"{name}/__init__.py")]
