"""The verdict on a plan: the levels, their findings, and the report file `meshwright.report/1`."""

from __future__ import annotations

from planner.plan.plan import Value

SCHEMA = "meshwright.report/1"
PASSED, FAILED, SKIPPED, TOLD = "passed", "failed", "skipped", "told"


class Finding(Value, frozen=True, kw_only=True):
    """One claim of a plan that does not hold.

    `what`: the tensor, step or number. `promised`: what the plan states. `found`: what the level found instead.
    """

    what: str
    promised: str
    found: str


class Level(Value, frozen=True, kw_only=True):
    """The result of one level in one mode.

    `status`: `passed`, `failed`, `skipped` (it could not run) or `told` (it ran, but had nothing to judge by).
    `checked`: the number of claims that were checked, 0 if skipped or told. `reason`: why it was not judged. `notes`:
    facts that contradict no claim, such as rewrites by the compiler, padding and measured errors. `seconds`: how long
    the level took.
    """

    level: str
    mode: str
    status: str
    checked: int = 0
    reason: str | None = None
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0


class Report(Value, frozen=True, kw_only=True):
    """The report of `verify` on one plan.

    `pick`: the number of the plan in its file, from 1. `holds`: no level failed, and at least one that ran or compiled
    the plan's programs passed.
    """

    schema: str
    tool_version: str
    plan: str
    pick: int
    summary: str
    levels: tuple[Level, ...]
    holds: bool

    @property
    def only_told(self) -> bool:
        """True if level `plan` passed and every other level only reported what it measured."""
        return {r.status for r in self.levels[:1]} == {PASSED} and {r.status for r in self.levels[1:]} == {TOLD}


def verdict(level: str, mode: str, checked: int, findings: tuple[Finding, ...], notes: tuple[str, ...] = ()) -> Level:
    """Return the result of a level that ran; it passed if it checked at least one claim and has no findings.

    >>> verdict("numerics", "manual", checked=3, findings=()).status
    'passed'
    >>> verdict("numerics", "manual", checked=0, findings=()).reason
    'nothing was checked'
    """
    status = PASSED if checked and not findings else FAILED
    reason = None if checked else "nothing was checked"
    return Level(level=level, mode=mode, status=status, checked=checked, reason=reason, findings=findings, notes=notes)


def skipped(level: str, mode: str, reason: str) -> Level:
    """Return the result of a level that cannot run here, with the reason; it never counts as passed."""
    return Level(level=level, mode=mode, status=SKIPPED, reason=reason)


def unjudged(level: str, mode: str, reason: str, notes: tuple[str, ...]) -> Level:
    """Return the result of a level that ran but has nothing to judge by; it never counts as passed."""
    return Level(level=level, mode=mode, status=TOLD, reason=reason, notes=notes)
