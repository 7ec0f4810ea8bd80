"""Requests of every command that plans give what they gave: layouts and numbers, to 1e-12."""

from __future__ import annotations

import json
from typing import Any

import pytest
from oracles.requests import COMMANDS, FILE, answer

KEPT: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
DEFAULT = (0, 30, 39)
"""Those of the default tier: a plan, ways to serve, what fits."""


def differences(now: Any, kept: Any, place: str = "") -> list[str]:
    """The places where two answers differ; numbers by more than 1e-12 of themselves."""
    if isinstance(kept, dict) and isinstance(now, dict):
        names = [*kept, *(name for name in now if name not in kept)]
        return [line for name in names for line in differences(now.get(name), kept.get(name), f"{place}.{name}")]
    if isinstance(kept, list) and isinstance(now, list) and len(kept) == len(now):
        return [
            line for n, pair in enumerate(zip(now, kept, strict=True)) for line in differences(*pair, f"{place}[{n}]")
        ]
    if isinstance(kept, float) and isinstance(now, int | float):
        return [] if abs(now - kept) <= 1e-12 * abs(kept) else [f"{place}: {now}, was {kept}"]
    return [] if now == kept else [f"{place}: {now}, was {kept}"]


@pytest.mark.parametrize(
    "command",
    [pytest.param(c, marks=() if n in DEFAULT else pytest.mark.slow) for n, c in enumerate(COMMANDS)],
)
def test_a_request_gives_what_it_gave(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The answers are kept in tests/cases/requests.json, in short: see oracles/requests.py."""
    assert differences(answer(command, capsys), KEPT[command]) == []


def test_every_request_has_an_answer_and_every_answer_a_request() -> None:
    """The two files belong together."""
    assert list(KEPT) == list(COMMANDS)
