"""The plot of `validate`: predicted against measured seconds, as SVG. matplotlib loads only here."""

from __future__ import annotations

import io
from typing import Any

from mesh.errors import InputError
from planner.validate.scores import CALIBRATED, CHIP, SHEET, SetScore, Validation

_MARKS = {SHEET: ("x", "C7"), CHIP: ("s", "C1"), CALIBRATED: ("o", "C0")}


def svg(found: Validation) -> bytes:
    """One panel per data set of seconds, both axes logarithmic; raises `InputError` without matplotlib."""
    timed = [one for one in found.sets if one.unit == "s"]
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
