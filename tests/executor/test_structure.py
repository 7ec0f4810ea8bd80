"""The structure of the executor: its rooms import one way, levels are siblings, and no text names an option."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from pkgutil import resolve_name

from executor.levels.verify import LEVELS

EXECUTOR = Path(__file__).parents[2] / "executor"
SHARED = {"common", "level", "shrink"}  # what levels have in common
FOREIGN = ("--fibers_default_thread_stack_size", "--xla_force_host_platform_device_count")  # libtpu's and XLA's


def modules() -> Iterator[tuple[Path, ast.Module]]:
    """Every module of the executor, as its path in the package and its tree."""
    for file in sorted(EXECUTOR.glob("**/*.py")):
        yield file.relative_to(EXECUTOR), ast.parse(file.read_text(encoding="utf-8"))


def imports(tree: ast.Module) -> Iterator[list[str]]:
    """What a module imports of the executor, anywhere in it: the words after the package's name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "executor":
            yield from ([*node.module.split(".")[1:], alias.name] for alias in node.names)


def test_rooms_import_one_way() -> None:
    """Folders and the modules beside them can be put in an order in which each imports only those before it."""
    found: dict[str, set[str]] = {}
    for path, tree in modules():
        room = path.parts[0].removesuffix(".py")
        found.setdefault(room, set()).update({words[0] for words in imports(tree)} - {room})
    TopologicalSorter(found).prepare()  # raises where there is a circle
    assert found["verdict"] == found["wording"] == set()


def test_a_level_imports_no_other_level() -> None:
    """Only what they share, and `verify` what it needs to run them."""
    for path, tree in modules():
        if path.parts[0] == "levels" and path.stem != "verify":
            of_levels = {words[1] for words in imports(tree) if words[0] == "levels"}
            assert of_levels <= SHARED, path


def test_the_table_names_functions_that_are_there() -> None:
    """A level's function loads only when it runs, so a wrong name would show late."""
    for entry in LEVELS.values():
        assert callable(resolve_name(entry.manual))
        assert entry.automatic is None or callable(resolve_name(entry.automatic))


def test_no_text_names_an_option_of_the_command() -> None:
    """Messages say what is wrong and with which value; the command line names the option."""
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "--" in node.value:
                assert any(flag in node.value for flag in FOREIGN), (path, node.lineno)
