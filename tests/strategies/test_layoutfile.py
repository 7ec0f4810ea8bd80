"""Reading `.layout` files: headers, conditions, and every way that a file can be wrong."""

import tomllib
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import pytest

from mesh.errors import InputError
from strategies.checker import check
from strategies.layoutfile import builtin_programs, parse_layout, read_layout, specialise
from strategies.notation import LayoutError, Program, Role

CASES = tomllib.loads((Path(__file__).parents[1] / "cases" / "rejected_layouts.toml").read_text("utf-8"))
PROGRAMS = builtin_programs()

MLP = """
# A comment, and a blank line.

program mlp   # trailing comment
phase: prefill
component: mlp
roles: X=D b=D*+B G=-+B
pad: F
weights: Wi Wg Wo
constraints: a u
requires: X b
input: n[B_Gb, T, D_X]
output: o[B_Gb, T, D_X]
body
when gated: when qk_norm: u[B_Gb, T, D_X] = Gelu(n[B_Gb, T, D_X])
when plain: a[B_Gb, T, D_X] = Gelu(n[B_Gb, T, D_X])
o[B_Gb, T, D_X] = Rename(n[B_Gb, T, D_X])
"""


def ids(program: Program) -> str:
    """Name of a program in test output."""
    return f"{program.phase}-{program.name}"


def check_all(text: str) -> None:
    """Parse and check every program of a file."""
    for program in parse_layout(text, "case.layout"):
        check(specialise(program, frozenset({"plain"})))


@pytest.mark.parametrize("case", CASES["file"], ids=lambda case: case["breaks"])
def test_a_wrong_file_is_rejected_with_the_whole_message(case: dict[str, str]) -> None:
    """Every header error and rule about whole programs names file, line, what was given and what is expected."""
    with pytest.raises(LayoutError) as caught:
        check_all(case["text"])
    assert str(caught.value) == case["error"]


def test_a_header_is_read_whole() -> None:
    """Every header line ends up in the program; comments and blank lines count for line numbers only."""
    (program,) = parse_layout(MLP, "my.layout")
    assert (program.name, program.phase, program.component, program.source) == ("mlp", "prefill", "mlp", "my.layout")
    assert program.roles == (Role("X", "D"), Role("b", "D*+B"), Role("G", "-+B"))
    assert (program.pad, program.weights, program.requires) == (("F",), ("Wi", "Wg", "Wo"), ("X", "b"))
    assert [step.line for step in program.steps] == [15, 16, 17]
    assert str(program.input) == "n[B_Gb, T, D_X]"


def test_a_line_runs_only_where_every_condition_is_met() -> None:
    """`when a: when b:` needs both; conditions are gone from what is left, and so are tensors of other lines."""
    (program,) = parse_layout(MLP)
    assert [step.when for step in program.steps] == [("gated", "qk_norm"), ("plain",), ()]
    assert [s.outputs[0].name for s in specialise(program, frozenset({"gated"})).steps] == ["o"]
    both = specialise(program, frozenset({"gated", "qk_norm"}))
    assert [s.outputs[0].name for s in both.steps] == ["u", "o"]
    assert both.constraints == ("u",)
    assert all(not s.options for s in both.steps)


@pytest.mark.parametrize("program", PROGRAMS, ids=ids)
def test_a_printed_program_parses_to_itself(program: Program) -> None:
    """Under its own header, the printed body is the same program, conditions and options included."""
    folder = Path(__file__).parents[2] / "strategies" / "programs"
    lines = (folder / program.source).read_text("utf-8").splitlines()
    start = max(i for i, line in enumerate(lines[: program.steps[0].line]) if line.startswith("program "))
    header = takewhile(lambda line: line.strip() != "body", lines[start:])
    (again,) = parse_layout("\n".join([*header, "body", str(program)]))
    assert replace(again, steps=tuple(replace(s, line=0) for s in again.steps)) == replace(
        program, steps=tuple(replace(s, line=0) for s in program.steps)
    )


def test_programs_of_one_name_may_serve_other_phases() -> None:
    """A file may hold a decode and a prefill program of one name."""
    other = MLP.replace("prefill", "decode").replace(", T, ", ", ")
    assert [p.phase for p in parse_layout(MLP + other)] == ["prefill", "decode"]


def test_a_file_is_read_with_its_path_in_errors(tmp_path: Path) -> None:
    """A user's file names itself where it is wrong."""
    file = tmp_path / "mine.layout"
    file.write_text(MLP.replace("phase: prefill", "phase: training"), encoding="utf-8")
    with pytest.raises(LayoutError) as caught:
        read_layout(file)
    assert str(caught.value) == f"{file}, line 5: phase 'training' is not known; expected one of decode, prefill"


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    """A missing file, a folder and bytes that are no text each say why."""
    binary = tmp_path / "binary.layout"
    binary.write_bytes(b"\xff\xfe\x00")
    reasons = {
        tmp_path / "none.layout": "No such file or directory",
        tmp_path: "Is a directory",
        binary: "it is not UTF-8 text",
    }
    for file, reason in reasons.items():
        with pytest.raises(InputError) as caught:
            read_layout(file)
        assert str(caught.value) == (
            f"cannot read the layout file '{file}': {reason}; expected a text file of programs"
        )
