"""The words of the code: docstrings are sentences, and a class name has one meaning."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("meshwright", "mesh", "strategies", "planner", "executor")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
REFUSED = ("What ", "Of ", "Those ", "The same ", "The same.")
"""Beginnings of docstrings that are no sentences: their noun stands elsewhere."""
NO_NAMES = ("found", "mine", "theirs", "told", "lot", "lots", "plays", "playing", "reshard", "board")
"""Names that say nothing of what they hold, or say it in words of our own."""


def documented(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the name and the docstring of everything that has one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "name", "module"), text


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_begin_as_sentences(package: str) -> None:
    """None begins with a clause whose noun is elsewhere."""
    refused = [
        f"{path.relative_to(ROOT)}: {name}: {text.splitlines()[0]}"
        for path in FILES
        if path.relative_to(ROOT).parts[0] == package
        for name, text in documented(ast.parse(path.read_text("utf-8")))
        if text.startswith(REFUSED)
    ]
    assert refused == []


def test_a_class_name_has_one_meaning() -> None:
    """Two classes have one name only where one is the other with methods, as answers are."""
    homes: defaultdict[str, list[tuple[str, list[str]]]] = defaultdict(list)
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
                homes[node.name].append((str(path.relative_to(ROOT)), bases))
    twice = {
        name: [home for home, _ in places]
        for name, places in homes.items()
        if len(places) > 1 and sum(name not in bases for _, bases in places) > 1
    }
    assert twice == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_names_say_what_they_hold(package: str) -> None:
    """No variable or parameter of a function has a name of no meaning."""
    bad = set()
    for path in FILES:
        if path.relative_to(ROOT).parts[0] != package:
            continue
        tree = ast.parse(path.read_text("utf-8"))
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            for node in ast.walk(function):
                name = node.arg if isinstance(node, ast.arg) else node.id if isinstance(node, ast.Name) else ""
                if name in NO_NAMES:
                    bad.add(f"{path.relative_to(ROOT)}: {function.name}: {name}")
    assert sorted(bad) == []
