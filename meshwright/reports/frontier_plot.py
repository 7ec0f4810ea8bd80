"""The plot of a frontier, as SVG, PNG or a page of its own: latency against what a token takes. matplotlib loads here.

As in the chapter's figure of PaLM: latency on x, cost on y, both logarithmic, so that down and left is better; cost is
in dollars where chips have prices, else in chip-seconds. Equal files give equal bytes.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from typing import Any

from mesh.errors import InputError
from meshwright.reports.plan import title
from planner.plan.planfile import COST, Frontier, PlanFile, Point

SUFFIXES = ("svg", "png", "html")
_SIZE_INCHES = (9.0, 6.0)
_LABEL_POINTS = 7
_REACHES = (5, 12, 20, 30, 42, 56, 75, 100)
Box = tuple[float, float, float, float]
"""Left, low, right, high, in pixels."""


def check_plot(option: str) -> None:
    """Raise `InputError` where matplotlib is missing, naming the option that asks for it: said before the search."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError(f"{option} needs matplotlib, which is not installed: pip install 'meshwright[plot]'") from None


def plot(file: PlanFile, frontier: Frontier, suffix: str) -> bytes:
    """Draw the figure in the format of the suffix; raises `InputError` without matplotlib."""
    check_plot(f"a plot as {suffix}")
    if suffix == "html":
        return _page(file, _figure(file, frontier, "svg").decode()).encode()
    return _figure(file, frontier, suffix)


def _figure(file: PlanFile, frontier: Frontier, suffix: str) -> bytes:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "meshwright", "svg.fonttype": "none"}):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        _draw(figure.subplots(), file, frontier)
        out = io.BytesIO()
        metadata = {"Date": None} if suffix == "svg" else {"Software": None}
        figure.savefig(out, format=suffix, dpi=150, metadata=metadata)
    return _with_tooltips(out.getvalue().decode(), frontier).encode() if suffix == "svg" else out.getvalue()


def _draw(panel: Any, file: PlanFile, frontier: Frontier) -> None:
    faint = [_place(point, frontier) for point in frontier.dominated]
    if faint:
        xs, ys = zip(*faint, strict=True)
        panel.scatter(xs, ys, s=9, color="0.8", label="dominated", zorder=1)
    line = _lower_left([_place(point, frontier) for point in frontier.points])
    panel.plot(*zip(*line, strict=True), color="C0", linewidth=1.0, label="frontier", zorder=2)
    places = [_place(point, frontier) for point in frontier.points]
    for number, (x, y) in enumerate(places, 1):
        panel.scatter([x], [y], s=24, color="C0", zorder=3, gid=_gid(number))
    step = "step" if file.plans[0].phase == "decode" else "prefill of the whole batch"
    unit = "$ per million tokens" if COST in frontier.axes else "chip-milliseconds per token"
    panel.set(xscale="log", yscale="log", xlabel=f"{step}, ms", ylabel=unit)
    panel.set_title(title(file.plans[0], ""), fontsize=9, wrap=True)
    panel.margins(x=0.12, y=0.12)
    panel.grid(which="major", color="0.92", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.legend(frameon=False)
    panel.figure.draw_without_rendering()  # where the axes lie is settled
    _label(panel, places, [f"{point.slice}, batch {point.batch}" for point in frontier.points])


def _label(panel: Any, places: Sequence[tuple[float, float]], texts: Sequence[str]) -> None:
    """Set each text at the nearest place where it covers no point and no other text, with a line if that is far."""
    scale = panel.figure.dpi / 72  # pixels of a typographic point
    dots = [tuple(panel.transData.transform(place)) for place in places]
    taken = [(x - 4 * scale, y - 4 * scale, x + 4 * scale, y + 4 * scale) for x, y in dots]
    for place, (x, y), text in zip(places, dots, texts, strict=True):
        width, height = _LABEL_POINTS * 0.56 * len(text) * scale, _LABEL_POINTS * 1.2 * scale
        options = [(dx, dy) for reach in _REACHES for dx, dy in _around(reach, scale, width, height)]
        dx, dy = next((o for o in options if _free(_box(x, y, o, width, height), taken)), options[0])
        taken.append(_box(x, y, (dx, dy), width, height))
        far = (dx, dy) not in options[:4]
        panel.annotate(
            text,
            place,
            (dx / scale, dy / scale),
            textcoords="offset points",
            fontsize=_LABEL_POINTS,
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": "0.5", "shrinkA": 0, "shrinkB": 2}
            if far
            else None,
        )


def _around(reach: float, scale: float, width: float, height: float) -> list[tuple[float, float]]:
    """Yield places for a text's lower left corner, in pixels from its point: right above, left below, and so on."""
    near = reach * scale
    return [(near, near), (-near - width, -near - height), (near, -near - height), (-near - width, near)]


def _box(x: float, y: float, offset: tuple[float, float], width: float, height: float) -> Box:
    return x + offset[0], y + offset[1], x + offset[0] + width, y + offset[1] + height


def _free(box: Box, taken: Sequence[Box]) -> bool:
    left, low, right, high = box
    return all(right < a or c < left or high < b or d < low for a, b, c, d in taken)


def _place(point: Point, frontier: Frontier) -> tuple[float, float]:
    """Return a point's milliseconds, and the dollars per million tokens or the chip-milliseconds of a token."""
    dollars = point.dollars_per_million_tokens
    cost = dollars if COST in frontier.axes and dollars is not None else 1e3 / point.tokens_per_s_per_chip
    return point.step_s * 1e3, cost


def _lower_left(places: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that have none to the left and below: the frontier in the plane that is drawn."""
    line: list[tuple[float, float]] = []
    for x, y in sorted(places):
        if not line or y < line[-1][1]:
            line.append((x, y))
    return line


def _gid(number: int) -> str:
    return f"plan-{number}"


def tooltip(number: int, point: Point) -> str:
    """Return the text that a point shows when it is pointed at."""
    dollars = point.dollars_per_million_tokens
    return "; ".join(
        [
            f"plan {number}: {point.slice}, batch {point.batch}",
            f"{point.step_s * 1e3:.4g} ms",
            f"{point.tokens_per_s_per_chip:,.4g} tokens/s per chip, {point.tokens_per_s:,.4g} tokens/s",
            *([] if dollars is None else [f"${dollars:.4g} per million tokens"]),
            *([f"best {' and '.join(point.best_of)}"] if point.best_of else []),
        ]
    )


def _with_tooltips(svg: str, frontier: Frontier) -> str:
    for number, point in enumerate(frontier.points, 1):
        opening = f'<g id="{_gid(number)}">'
        svg = svg.replace(opening, f"{opening}\n<title>{html.escape(tooltip(number, point))}</title>", 1)
    return svg


def _page(file: PlanFile, svg: str) -> str:
    """Return a page of HTML around the SVG."""
    name = html.escape(f"{file.plans[0].model.name}: latency against cost")
    drawing = re.sub(r"^.*?(?=<svg)", "", svg, count=1, flags=re.DOTALL)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{name}</title>\n'
        "<style>body { font-family: sans-serif } svg { max-width: 100%; height: auto }</style>\n</head>\n<body>\n"
        f"<h1>{name}</h1>\n<p>Point at a point of the frontier for its figures.</p>\n"
        f"{drawing}</body>\n</html>\n"
    )
