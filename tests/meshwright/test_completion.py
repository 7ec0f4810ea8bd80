"""Shell completion, as click has it: commands, options, and the words that a value may be."""

from __future__ import annotations

import pytest

import meshwright


def completed(line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a shell offers for the last word of a line."""
    monkeypatch.setenv("_MESHWRIGHT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
    assert meshwright.main([]) == 0
    return [word.partition(",")[2] for word in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("meshwright sens", ["sensitivity"]),
        ("meshwright plan llama-3.1-", ["llama-3.1-405b", "llama-3.1-70b", "llama-3.1-8b"]),
        ("meshwright plan llama-3.1-8b --max-s", ["--max-step-ms"]),
        ("meshwright plan llama-3.1-8b --slice v5e:4x4,v5e:4", ["v5e:4x4,v5e:4x4", "v5e:4x4,v5e:4x8"]),
        ("meshwright plan llama-3.1-8b --cuts ", ["two", "all", "none"]),
        ("meshwright pareto llama-3.1-8b --chip v5", ["v5e", "v5p"]),
    ],
)
def test_a_word_is_completed(
    line: str, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What begins as the word does, the last one after a comma."""
    assert completed(line, capsys, monkeypatch) == words


def test_the_shell_gets_a_script(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The script that a shell's configuration evaluates."""
    monkeypatch.setenv("_MESHWRIGHT_COMPLETE", "zsh_source")
    assert meshwright.main([]) == 0
    assert "compdef" in capsys.readouterr().out
