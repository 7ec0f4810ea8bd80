"""The report of `verify`, for people and for build servers (JUnit)."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from executor.verdict import FAILED, SKIPPED, TOLD, Level, Report
from meshwright.reports.text import Block, Lines, TextTable
from planner.numbers import digits


def blocks(report: Report) -> Sequence[Block]:
    """Return the report as tables and lines."""
    rows = [
        (r.level, r.mode, r.status, str(r.checked), str(len(r.findings)), digits(r.seconds, 3), r.reason or "")
        for r in report.levels
    ]
    headers = ("level", "mode", "verdict", "checked", "broken", "s", "why")
    return [
        Lines("", [f"{report.summary} (plan {report.pick} of {report.plan})"]),
        TextTable("Levels", headers, rows),
        *(_findings(r) for r in report.levels),
        *(Lines(f"Notes of {r.level} ({r.mode})", r.notes) for r in report.levels),
        Lines("", [_last(report)]),
    ]


def _last(report: Report) -> str:
    if report.only_told:
        return "nothing was judged"
    return "the plan does what was promised" if report.holds else "the plan does NOT hold"


def _findings(level: Level) -> Block:
    rows = [(f.what, f.promised, f.found) for f in level.findings]
    return TextTable(f"Broken promises of {level.level} ({level.mode})", ("what", "promised", "found"), rows)


def junit(report: Report) -> bytes:
    """Return the report as JUnit XML: one test case per level and mode; a level that judges nothing is skipped."""
    failed, unproved = (sum(r.status in them for r in report.levels) for them in ((FAILED,), (SKIPPED, TOLD)))
    suite = ElementTree.Element(
        "testsuite",
        name=f"meshwright verify: {report.summary}",
        tests=str(len(report.levels)),
        failures=str(failed),
        skipped=str(unproved),
        time=f"{sum(r.seconds for r in report.levels):.3f}",
    )
    for level in report.levels:
        _case(suite, level)
    ElementTree.indent(suite)
    text: str = ElementTree.tostring(suite, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'.encode()


def _case(suite: ElementTree.Element, level: Level) -> None:
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname="meshwright.verify",
        name=f"{level.level} ({level.mode})",
        time=f"{level.seconds:.3f}",
    )
    if level.status in (SKIPPED, TOLD):
        ElementTree.SubElement(case, "skipped", message=level.reason or "")
    if level.status == FAILED:
        text = "\n".join(f"{f.what}: promised {f.promised}, found {f.found}" for f in level.findings)
        failure = ElementTree.SubElement(
            case, "failure", message=level.reason or f"{len(level.findings)} broken promises"
        )
        failure.text = text
    if level.notes:
        ElementTree.SubElement(case, "system-out").text = "\n".join(level.notes)
