"""The command `plan --phase serve`: its options, what it prints and writes, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import meshwright

COMMAND = [
    "plan", "llama-3.1-8b", "--phase", "serve", "--slice", "v5e:2x2", "--weights", "int8", "--kv", "int8",
    "--batch", "8,64", "--prefill-batch", "1", "--input-tokens", "1024",
]  # fmt: skip


def test_command_writes_a_file_that_explain_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`-o` is the file, whatever its name; plans of it are explained by number."""
    path = tmp_path / "300"
    assert meshwright.main([*COMMAND, "--output-tokens", "128", "-o", str(path), "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == json.loads(path.read_bytes())
    assert said["serving"]["output"] == 128
    assert meshwright.main(["explain", str(path), "--pick", "2"]) == 0
    assert "tokens in each cache" in capsys.readouterr().out


def test_command_says_what_lies_between(capsys: pytest.CaptureFixture[str]) -> None:
    """The table has a line per way; what follows says the ratio, the transfer, the memory and how it is counted."""
    assert meshwright.main([*COMMAND, "--output-tokens", "128"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in (
        "serving 1024 tokens in and 128 out",
        "prefill slices per decode slice",
        "KV transfer of a cache, 67.11 MB, over DCN",
        "per device at its fullest",
        "into the decode layout",
        "queues of uneven arrivals are left out",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--phase serve: --output-tokens missing; expected tokens, such as 2000"),
        (["--output-tokens", "many"], "--output-tokens 'many': expected a whole number"),
        (["--output-tokens", "0"], "output 0: expected a whole number from 1"),
        (["--output-tokens", "128", "--serving", "eager"], "--serving 'eager': expected batched"),
        (["--output-tokens", "128", "--fix", "attention=X:B"], "--fix attention=X:B: --phase serve does not take it"),
        (["--output-tokens", "128", "--num-slices", "2"], "--num-slices 2: --phase serve does not take it"),
        (["--output-tokens", "128", "--num-slices", "two"], "--num-slices 'two': expected a whole number"),
        (
            ["--output-tokens", "128", "--context", "300"],
            "--context 300: --phase serve does not take it; it is the sum of --input-tokens and",
        ),
        (
            ["--output-tokens", "128", "--phase", "decode"],
            "--input-tokens belongs to --phase serve; the phase is decode",
        ),
    ],
)
def test_bad_options_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong options exit with 2 and one line that says what would work."""
    assert meshwright.main([*COMMAND, *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert message in said.err


def test_unmet_targets_exit_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    """Where no mode is possible the command exits with 1 and the reasons; nothing of larger slices is claimed."""
    arguments = [
        "plan",
        "llama-3.1-8b",
        "--phase",
        "serve",
        "--slice",
        "v5e:1x1",
        "--input-tokens",
        "1024",
        "--output-tokens",
        "128",
    ]
    assert meshwright.main([*arguments, "--weights", "int8", "--batch", "256", "--prefill-batch", "1"]) == 1
    assert "does not fit on v5e:1x1" in capsys.readouterr().err
