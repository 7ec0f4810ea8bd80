"""The report of `sensitivity`: each hardware number less and more, and what that does to the choice."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.reports.text import Block, Lines, TextTable
from planner.numbers import digits, ms
from planner.sensitivity.types import Change, Outcome, QuantityEffect, SensitivityFile
from strategies.role_words import letters_in_words

_HEADERS = (
    "hardware number", "change", "kept ms", "fits", "best ms", "slower by", "the best layout", "elasticity",
)  # fmt: skip
_ELASTICITY = frozenset({7})
_LEGEND = "kept ms: the step of the plan's layout; best ms: of the best layout there; fits: the plan's layout"


def report(answer: SensitivityFile) -> list[Block]:
    """Return two rows per hardware number, then the changes of the best layout."""
    return [
        Lines("", [_title(answer), *_as_it_is(answer)]),
        TextTable(
            "", _HEADERS, [row for one in answer.quantities for row in _rows(one, answer.swing)], wide=_ELASTICITY
        ),
        Lines("", [_LEGEND]),
        Lines("What changes", list(_changes(answer))),
        Lines("What the step depends on", [_elasticities(answer)]),
    ]


def _title(answer: SensitivityFile) -> str:
    d = answer.dtypes
    return (
        f"{answer.model} on {answer.slice}, {answer.phase} at batch {answer.batch}, context {answer.context}; weights "
        f"{d.weights}, KV cache {d.kv}, activations {d.activations}, compute {d.compute}: plan {answer.pick} with "
        f"{100 * answer.swing:g}% less and more of each hardware number"
    )


def _as_it_is(answer: SensitivityFile) -> list[str]:
    step = f"as it is the step takes {ms(answer.step_s)} ms"
    if answer.best is None or answer.regret is None:
        return [f"{step}, and no layout fits"]
    if not answer.changes and answer.regret <= 0:
        return [f"{step}, the best there is"]
    return [f"{step}, {_percent(answer.regret)} more than the best layout's: {_what(answer.changes)}"]


def _rows(one: QuantityEffect, swing: float) -> Iterator[list[str]]:
    for outcome, sign in ((one.less, "-"), (one.more, "+")):
        yield [
            f"{one.quantity} ({value_text(one)})" if outcome is one.less else "",
            f"{sign}{100 * swing:g}%",
            ms(outcome.kept_s),
            "yes" if outcome.kept_fits else "no",
            ms(outcome.best.step_s) if outcome.best else "nothing fits",
            _slower(outcome),
            _choice(outcome),
            _signed(one.elasticity) if outcome is one.less else "",
        ]


def value_text(one: QuantityEffect) -> str:
    """Return the number as people write it: `820 GB/s`, `0.9 us`.

    FLOP/s in T, bytes in GB, seconds in us.
    """
    match one.unit:
        case "FLOP/s":
            return f"{digits(one.value / 1e12, 3)} TFLOP/s"
        case "bytes/s":
            return f"{digits(one.value / 1e9, 3)} GB/s"
        case "bytes":
            return f"{digits(one.value / 1e9, 3)} GB"
    return f"{digits(one.value * 1e6, 3)} us"


def _signed(value: float) -> str:
    return f"{value:+.2f}" if abs(value) >= 0.005 else "0"


def _slower(outcome: Outcome) -> str:
    if outcome.regret is None or not outcome.kept_fits:
        return ""
    return _percent(outcome.regret) if outcome.changed else "0%"


def _percent(share: float) -> str:
    return f"{share:.2%}" if share >= 5e-5 else f"{share * 1e6:.1f} ppm"


def _choice(outcome: Outcome) -> str:
    if outcome.best is None:
        return "none"
    if not outcome.changed:
        return "stays"
    return f"changes: {', '.join(change.component for change in outcome.changes) or 'place on the torus'}"


def _words(change: Change, roles: str) -> str:
    return letters_in_words(change.component, roles)


def _what(changes: tuple[Change, ...]) -> str:
    texts = [
        f"{change.component}: {_words(change, change.kept)} -> {_words(change, change.best)}" for change in changes
    ]
    return "; ".join(texts) or "equal roles, placed on the torus in another way"


def _changes(answer: SensitivityFile) -> Iterator[str]:
    for one in answer.quantities:
        for outcome, sign in ((one.less, "-"), (one.more, "+")):
            if outcome.changed:
                yield f"{one.quantity} {sign}{100 * answer.swing:g}%: {_what(outcome.changes)}"


def _elasticities(answer: SensitivityFile) -> str:
    """Return the hardware numbers, by how much the step follows each."""
    ranked = sorted(answer.quantities, key=lambda one: (-abs(one.elasticity), one.quantity))
    texts = [f"{one.quantity} {one.elasticity:+.2f}" for one in ranked if abs(one.elasticity) >= 0.005]
    return f"1% more of a number changes the step by so many percent: {', '.join(texts) or 'nothing'}"
