"""The report of `validate`: a line per data set, then what each one's points say; and its plot, as SVG."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from mesh.chips import Reached
from mesh.errors import InputError
from meshwright.reports.text import Block, Lines, TextTable
from planner.numbers import digits
from planner.validate.scores import (
    CALIBRATED,
    CHIP,
    COMPUTED,
    FITTED,
    SHEET,
    Errors,
    FittedConstants,
    Judged,
    SetScore,
    Validation,
)

UNITS = {"s": ("ms", 1e3), "tokens": ("tokens", 1.0), "tokens/s": ("tokens/s", 1.0), "per s": ("T/s", 1e-12)}
_CONSTANTS = ("constants", "of", "HBM", "matmul", "link", "hop", "launch us", "fitted to")
_MARKS = {SHEET: ("x", "C7"), CHIP: ("s", "C1"), CALIBRATED: ("o", "C0")}
_SHEET = Reached(hbm=1, matmul=1, link=1, hop=1, launch_s=0)


def report(validation: Validation) -> list[Block]:
    """Return the whole report of `validate`."""
    return [_summary(validation), *(block for one in validation.sets for block in _set(one)), _verdict(validation)]


def _summary(validation: Validation) -> TextTable:
    headers = ("data set", "what", "points", "data sheet", "chip", "calibrated", "targets met")
    rows = [_summary_row(one) for one in validation.sets]
    return TextTable("Median and worst error of predictions, against published measurements", headers, rows)


def _summary_row(one: SetScore) -> list[str]:
    whole = {errors.constants: errors for errors in one.errors if not errors.of}
    if one.unit == "tokens/s":
        columns = ["a bound", "a bound", "-"]
    else:
        columns = [_both(whole.get(name)) for name in (SHEET, CHIP, CALIBRATED)]
    if COMPUTED in whole:
        columns[0] = _both(whole[COMPUTED])
    met = sum(target.met for target in one.targets)
    return [one.name, one.title, str(len(one.points)), *columns, f"{met} of {len(one.targets)}"]


def _both(errors: Errors | None) -> str:
    return f"{errors.median:.1%}, {errors.worst:.1%}" if errors else "-"


def _set(one: SetScore) -> Iterator[Block]:
    yield Lines(f"{one.name}: {one.title}", list(_head(one)))
    yield TextTable("", _CONSTANTS, list(_constants(one)))
    yield _points(one)
    yield _errors(one)
    rows = [(r.situation, r.measured, r.predicted, r.at_chip, _seconds(r.seconds)) for r in one.rankings]
    yield TextTable("", ("first of its layouts", "measured", "calibrated", "at chip constants", "calibrated ms"), rows)
    yield Lines("Notes", list(_notes(one)))
    yield TextTable("", ("target", "of", "found", "at most", "met"), [_target(target) for target in one.targets])


def _head(one: SetScore) -> Iterator[str]:
    yield f"source: {one.source}" + (f", {one.date}" if one.date else "")
    yield f"software: {one.software}"
    yield f"harness: {one.harness}"
    yield from (f"inferred: {text}" for text in one.inferred)
    yield from (f"not modelled: {text}" for text in one.not_modelled)


def _constants(one: SetScore) -> Iterator[list[str]]:
    if not one.chip_constants:
        return
    yield ["data sheet", "", *_reached(_SHEET), "nothing"]
    for chip, reached in one.chip_constants.items():
        yield ["chip", chip, *_reached(reached), "see `meshwright chips`"]
    for fitted in one.calibrations:
        many = f"{fitted.points} points"
        if fitted.configurations != fitted.points:
            many += f", {fitted.configurations} configurations"
        yield [FITTED, fitted.of, *_reached(fitted.reached), many]
        yield ["  95% interval", fitted.of, *_intervals(fitted), ""]


def _reached(reached: Reached) -> list[str]:
    shares = [f"{share:.1%}" for share in (reached.hbm, reached.matmul, reached.link)]
    return [*shares, f"{reached.hop:.2f}", f"{reached.launch_s * 1e6:.2f}"]


def _intervals(fitted: FittedConstants) -> list[str]:
    def text(name: str) -> str:
        if name not in fitted.intervals:
            return "fixed"
        low, high = fitted.intervals[name]
        if name == "launch_s":
            return f"{low * 1e6:.1f} to {high * 1e6:.1f}"
        return f"{low:.1f} to {high:.1f}" if name == "hop" else f"{low:.1%} to {high:.1%}"

    return [text(name) for name in ("hbm", "matmul", "link", "hop", "launch_s")]


def _points(one: SetScore) -> TextTable:
    unit, factor = UNITS[one.unit]
    names = list(one.points[0].predicted)
    scored = [name for name in names if name in (CHIP, CALIBRATED, COMPUTED) and one.unit != "tokens/s"]
    headers = ("point", f"measured {unit}", *names, *(f"error, {name}" for name in scored))
    rows = [
        [
            point.name,
            digits(point.measured * factor),
            *(digits(point.predicted[name] * factor) for name in names),
            *(f"{point.error(name):+.1%}" for name in scored),
        ]
        for point in one.points
    ]
    return TextTable("", headers, rows)


def _errors(one: SetScore) -> TextTable:
    kept = [e for e in one.errors if e.constants != COMPUTED] if one.unit != "tokens/s" else []
    rows = [(e.constants, e.of or "all", str(e.points), f"{e.median:.1%}", f"{e.worst:.1%}") for e in kept]
    return TextTable("", ("errors at constants", "of", "points", "median", "worst"), rows)


def _seconds(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {digits(s * 1e3)}" for name, s in seconds.items())


def _notes(one: SetScore) -> Iterator[str]:
    yield from one.notes
    for fitted in one.calibrations:
        yield f"{fitted.of}: {fitted.note}" if fitted.of else fitted.note


def _target(target: Judged) -> list[str]:
    counted = target.what in ("ranked wrong", "winners missed", "published first")
    text = ("{:.0f}" if counted else "{:.1%}").format
    return [target.what, target.of or "all", text(target.found), text(target.at_most), "yes" if target.met else "NO"]


def _verdict(validation: Validation) -> Lines:
    missed = [f"{one.name}: {t.what}" for one in validation.sets for t in one.targets if not t.met]
    many = sum(len(one.targets) for one in validation.sets)
    return Lines("", [f"targets missed: {', '.join(missed)}" if missed else f"all {many} targets are met"])


def svg(validation: Validation) -> bytes:
    """Draw one panel per data set of seconds, on logarithmic axes; raises `InputError` without matplotlib."""
    timed = [one for one in validation.sets if one.unit == "s"]
    if not timed:
        raise InputError(
            "--format svg: these data sets hold no seconds; expected one that does, such as llama3-70b-v5e16"
        )
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            "--format svg needs matplotlib, which is not installed: pip install 'meshwright[plot]'"
        ) from None
    with matplotlib.rc_context({"svg.hashsalt": "meshwright", "svg.fonttype": "none"}):
        figure = Figure(figsize=(5.5 * len(timed), 5.5), layout="constrained")
        for panel, one in zip(figure.subplots(1, len(timed), squeeze=False)[0], timed, strict=True):
            _draw(panel, one)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def _draw(panel: Any, one: SetScore) -> None:
    measured = [point.measured * 1e3 for point in one.points]
    ends = [min(measured) / 1.5, max(measured) * 1.5]
    panel.plot(ends, ends, color="black", linewidth=0.8, label="as measured")
    for share in (0.85, 1.15):
        panel.plot(ends, [share * end for end in ends], color="black", linewidth=0.5, linestyle=":")
    for constants, (mark, color) in _MARKS.items():
        predicted = [point.predicted[constants] * 1e3 for point in one.points]
        filled = color if constants == CALIBRATED else "none"
        edge = {"color": color} if mark == "x" else {"edgecolors": color, "facecolors": filled}
        panel.scatter(measured, predicted, marker=mark, s=22, label=f"{constants} constants", **edge)
    panel.set(xscale="log", yscale="log", xlabel="measured ms", ylabel="predicted ms", title=one.name)
    panel.legend(frameon=False)
