"""How wide text is: 100 columns at most by default, fewer where there are fewer, plain in a pipe."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import meshwright
from meshwright.cli import COMMANDS
from meshwright.output import terminal
from meshwright.reports.text import Lines, TextTable, render

SMALL = "llama-3.1-8b --slice v5e:2x2 --weights int8 --kv int8"
OUTPUTS = {
    "models": ["models", "models gpt-oss-20b"],
    "chips": ["chips", "chips v5e"],
    "glossary": ["glossary"],
    "schema": ["schema plan --format table"],
    "roofline": ["roofline llama-2-13b --slice v5e:4x4 --batch 1,240"],
    "book": ["book llama-2-13b --slice v5e:4x4"],
    "plan": [
        f"plan {SMALL} --batch 1,64 --rejected --price-per-chip-hour 1.2",
        "plan qwen3-30b-a3b --slice v5e:2x4 --phase prefill --batch 4 --weights int8 --top 2",
        f"plan {SMALL} --batch 24 --num-slices 12",
        "plan llama-3.1-8b --slice v5e:2x2 --phase serve --input-tokens 1024 --output-tokens 128 --batch 8 "
        "--prefill-batch 1 --price-per-chip-hour 1.2",
    ],
    "price": ["price llama-3.1-8b --slice v5e:2x2 --layout PLAN --batch 16"],
    "explain": ["explain PLAN"],
    "pareto": ["pareto llama-3.1-8b --chip v5e --chips 4..8 --weights int8 --batch 1,64 --price-per-chip-hour 1.2"],
    "fits": ["fits llama-3.1-8b --chip v5e --chips 1..4 --batch 4"],
    "sensitivity": ["sensitivity PLAN"],
    "fleet": [
        "fleet llama-3.1-8b --quota v5e=8 --traffic requests_per_s=3,input=2000,output=300 --weights int8 --kv int8 "
        "--price-per-chip-hour 1.2 --prefill-batch 1 --decode-batch 8,32"
    ],
    "validate": ["validate --set v5e-layer-appendix-a"],
    "verify": ["verify PLAN --level collectives"],
}
NOT_RUN = {"calibrate"}  # it measures this machine, for a minute

SLOW = {("validate", 80), ("verify", 80), ("sensitivity", 80), ("fleet", 80)}
"""Commands that take a second or more, which the default run looks at once."""


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan file for the commands that take one."""
    return meshwright.plan("llama-3.1-8b", "v5e:2x2", batch=16, top=1).save(tmp_path_factory.mktemp("wide") / "p.json")


def test_every_command_is_looked_at() -> None:
    """A new command has its outputs here."""
    assert set(OUTPUTS) | NOT_RUN == set(COMMANDS)


@pytest.mark.parametrize(
    ("command", "width"),
    [
        pytest.param(command, width, marks=pytest.mark.slow if (name, width) in SLOW else [])
        for name, commands in OUTPUTS.items()
        for command in commands
        for width in (100, 80)
    ],
)
def test_no_output_is_wider_than_the_terminal(
    command: str, width: int, plan_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line is longer, but for a word that is, which is not broken."""
    monkeypatch.setenv("COLUMNS", str(width))
    assert meshwright.main([word.replace("PLAN", str(plan_file)) for word in command.split()]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert [line for line in lines if len(line) > width and not _one_word(line, width)] == []


def _one_word(line: str, width: int) -> bool:
    """Return whether a line is too long for one unbroken word, such as an address or a tensor, alone."""
    words = re.sub(r"\[[^]]*\]", lambda match: match[0].replace(" ", "_"), line).split()
    return len(words) <= 2 and max(map(len, words)) > width - 20


def test_help_is_grouped_with_an_example(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command's help has an example of its own, fits the terminal, and a search has its options in groups."""
    monkeypatch.setenv("COLUMNS", "100")
    for command in COMMANDS:
        assert meshwright.main([command, "--help"]) == 0
        text = capsys.readouterr().out
        assert f"  meshwright {command}" in text.partition("Options:")[0].split("Usage", 1)[1].partition("\n")[2]
        assert max(map(len, text.splitlines())) <= 100
    assert meshwright.main(["plan", "--help"]) == 0
    text = capsys.readouterr().out
    assert [t for t in ("Workload:", "Hardware:", "Targets:", "Search:", "Output:") if t not in text] == []


def test_a_bare_command_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    """`meshwright` alone lists the commands, and is no error."""
    assert meshwright.main([]) == 0
    assert "Commands:" in capsys.readouterr().out


def test_a_table_keeps_its_first_columns_and_puts_the_rest_beneath() -> None:
    """Broad columns go first, then the last; nothing of a row is lost."""
    table = TextTable("", ("name", "n", "why", "m"), [("a", "1", "w " * 30, "2"), ("b", "3", "short", "4")])
    text = render([table], "table", 40)
    assert text.splitlines()[0].split() == ["name", "n", "m"]
    assert "why: w w" in text
    assert "why: short" in text
    assert max(map(len, text.splitlines())) <= 40
    assert render([table], "wide").splitlines()[0].split() == ["name", "n", "why", "m"]


def test_a_tensor_is_not_broken_over_lines() -> None:
    """Dims and a partial sum stay on one line."""
    text = render([Lines("", ["step " * 6 + "Q[B_ab, N_c, H] {U_d}"])], "table", 40)
    assert "Q[B_ab, N_c, H] {U_d}" in text


def test_text_in_a_pipe_is_plain_and_of_100_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """COLUMNS counts where it is a number; headings are bold on terminals alone."""
    monkeypatch.delenv("COLUMNS", raising=False)
    assert terminal() == (100, False)
    monkeypatch.setenv("COLUMNS", "72")
    assert terminal() == (72, False)
    monkeypatch.setenv("COLUMNS", "wide")
    assert terminal() == (100, False)
    assert render([Lines("Notes", ["a"])], "table", bold=True) == "\x1b[1mNotes\x1b[0m\n  a\n"


@pytest.mark.parametrize(
    ("command", "column"),
    [
        ("sensitivity PLAN", "elasticity"),
        ("roofline llama-2-13b --slice v5e:4x4", "KV GB"),
        ("models", "max context"),
        ("chips", "hop us"),
        ("explain PLAN", "MLP"),
        ("fits llama-3.1-8b --slice v5e:2x2", "attention"),
    ],
)
def test_wide_shows_the_columns_that_a_table_leaves_out(
    command: str, column: str, plan_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command takes `--wide`, which has these columns and no limit of width."""

    def headers(*more: str) -> list[str]:
        assert meshwright.main([*(word.replace("PLAN", str(plan_file)) for word in command.split()), *more]) == 0
        lines = capsys.readouterr().out.splitlines()
        rule = next(number for number, line in enumerate(lines) if line.startswith("---"))
        return re.split(" {2,}", lines[rule - 1].strip())

    assert column not in headers()
    assert column in headers("--wide")
