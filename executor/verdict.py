"""The verdict on a plan: levels, what each found, and the report file `meshwright.report/1`."""

from __future__ import annotations

from planner.plan.plan import Value

SCHEMA = "meshwright.report/1"
PASSED, FAILED, SKIPPED, TOLD = "passed", "failed", "skipped", "told"


class Finding(Value, frozen=True, kw_only=True):
    """One promise that does not hold: which tensor or step, what the plan promised, and what was found."""

    what: str
    promised: str
    found: str


class Level(Value, frozen=True, kw_only=True):
    """One level's result in one mode. `checked` counts the promises held against facts: none if skipped or told.

    `notes` are facts worth reading that break no promise: rewrites by the compiler, padding, measured errors.
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
    """The report of `verify` on one plan."""

    schema: str
    tool_version: str
    plan: str
    pick: int
    summary: str
    levels: tuple[Level, ...]
    holds: bool

    @property
    def only_told(self) -> bool:
        """Return whether the plan is what its file says, and no level judged what it does."""
        return {r.status for r in self.levels[:1]} == {PASSED} and {r.status for r in self.levels[1:]} == {TOLD}


def verdict(level: str, mode: str, checked: int, findings: tuple[Finding, ...], notes: tuple[str, ...] = ()) -> Level:
    """A level that ran: passed where nothing was found and at least one promise was checked."""
    status = PASSED if checked and not findings else FAILED
    reason = None if checked else "nothing was checked"
    return Level(level=level, mode=mode, status=status, checked=checked, reason=reason, findings=findings, notes=notes)


def skipped(level: str, mode: str, reason: str) -> Level:
    """A level that cannot run here, and why; it never counts as passed."""
    return Level(level=level, mode=mode, status=SKIPPED, reason=reason)


def unjudged(level: str, mode: str, reason: str, notes: tuple[str, ...]) -> Level:
    """A level that ran, and has nothing to hold what it found against; it never counts as passed."""
    return Level(level=level, mode=mode, status=TOLD, reason=reason, notes=notes)
