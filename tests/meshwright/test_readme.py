"""The README's examples: every command in a console block prints what the README shows."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import meshwright

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
SECONDS = re.compile(r"(?<=in )\d+\.\d+(?= s\b)|(?<=in )\d+(?= s\b)")
LEVELS = re.compile(r"^(level +mode +verdict +checked +broken) .*\n((?:-+ +){4}-+) .*$", flags=re.MULTILINE)
VERDICT = re.compile(r"^(\S+ +\S+ +(?:passed|failed|skipped) +\d+ +\d+) .*$")
SLOW = (
    "meshwright validate | ",
    "--mode unconstrained",
    "--batch auto",
    "meshwright fits",
    "verify plan.json",
    "meshwright fleet",
    "meshwright pareto",
    "sensitivity plan.json",
)
"""Examples of more than two seconds are among the slow tests, those with the TPU compiler with them."""
MEASURED = re.compile(r"temporaries|of their standard deviation off")


def examples(block: str) -> list[tuple[str, str]]:
    """(command, output) pairs of a block."""
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def clean(text: str) -> str:
    """Without trailing spaces, seconds, and lines whose figures depend on the version of a compiler."""
    text = LEVELS.sub(r"\1\n\2", SECONDS.sub("-", text))  # columns of seconds are as wide as these are
    lines = (VERDICT.sub(r"\1", line.rstrip()) for line in text.rstrip().splitlines())
    return "\n".join(line for line in lines if not MEASURED.search(line))


def cases() -> list[object]:
    """Every block, by its first command."""
    slow = {block: [pytest.mark.slow] for block in BLOCKS if any(word in block for word in SLOW)}
    return [pytest.param(block, id=block.splitlines()[0][2:50], marks=slow.get(block, [])) for block in BLOCKS]


def bash(command: str, cwd: Path, first: str = "") -> str:
    """What a command prints, with the `meshwright` of this environment unless `first` defines another."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}  # other tests set it
    run = subprocess.run(
        ["bash", "-c", first + command], cwd=cwd, env={**env, "PATH": path}, capture_output=True, text=True
    )
    return run.stdout + run.stderr


def arguments_of(command: str) -> list[str]:
    """The arguments of the `meshwright` that a command begins with, as its shell would pass them; none of another."""
    own = re.split(r" (?=\||\d?>)", command)[0]  # up to a pipe or redirection
    return shlex.split(own)[1:] if own.startswith("meshwright ") else []


def in_process(command: str, cwd: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """What a command prints whose `meshwright` is called here: a shell function says what it said, where it did."""
    arguments = arguments_of(command)
    if not arguments:
        return bash(command, cwd)
    capfd.readouterr()
    code = meshwright.main(arguments)
    for name, said in zip(("stdout", "stderr"), capfd.readouterr(), strict=True):
        (cwd / name).write_text(said, encoding="utf-8")
    return bash(command, cwd, f"meshwright() {{ cat stdout; cat stderr >&2; return {code}; }}\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to be in, with the tests' cases."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("block", cases())
def test_readme_example_prints_what_the_readme_shows(
    block: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Running a block's commands in order gives the block's text, but for the seconds of a search."""
    pairs = examples(block)
    assert pairs
    if "verify" in block and importlib.util.find_spec("libtpu") is None:
        pytest.skip("needs the TPU compiler: the extra [tpu]")
    for command, shown in pairs:
        assert clean(in_process(command, folder, capfd)) == clean(shown), command


@pytest.mark.parametrize("word", ["roofline llama-2-13b", pytest.param("column-mlp.layout", marks=pytest.mark.slow)])
def test_readme_example_in_processes_of_its_own(word: str, folder: Path) -> None:
    """The installed command prints the same: to a reader that goes away after ten lines, and on both streams."""
    blocks = [block for block in BLOCKS if word in block]
    for command, shown in [pair for block in blocks for pair in examples(block)]:
        assert clean(bash(command, folder)) == clean(shown), command


def test_readme_has_its_two_commands() -> None:
    """The README's first two commands set up everything: one plans Llama-3.1-70B, one runs the tests."""
    commands = re.findall(r"^    (python3 -m venv .*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(commands) == 2
    assert "meshwright plan llama-3.1-70b" in commands[0]
    assert commands[1].endswith("-m pytest")


def test_ci_runs_the_readmes_test_command() -> None:
    """.ci/run holds the README's test command to the letter."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command = re.findall(r"^    (python3 -m venv .* -m pytest)$", readme, re.MULTILINE)[0]
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
