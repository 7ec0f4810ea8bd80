"""The plan file: plans, best first, with what was searched and rejected. Schema: `meshwright.plan/1`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mesh.errors import InputError
from planner.plan.file_fleet import Fleet
from planner.plan.file_proof import Solver
from planner.plan.file_serving import Serving
from planner.plan.plan import Plan, Value

SCHEMA = "meshwright.plan/1"
INTERRUPTED = "interrupted"
"""What `Search.proved_optimal` says of a search that an interrupt ended."""
LATENCY, THROUGHPUT, COST = "latency", "throughput", "cost"


class Example(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A worked example of a rejection."""

    need: str
    have: str


class Rejected(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Assignments that a reason ruled out."""

    reason: str
    count: int
    example: Example


class Search(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The layouts that the search covered (`candidates`), the programs that it priced (`evaluations`), and its proof.

    `wall_s` is of the whole plan, pricing the best in full included; `evaluations_per_s` of the search of all slices.
    """

    candidates: int
    evaluations: int
    wall_s: float
    proved_optimal: str
    evaluations_per_s: float = 0.0


class Point(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The best layout of one slice and batch; `dollars_per_million_tokens` where its chip has a price.

    `best_of`: the objectives of which no candidate has a better value.
    """

    slice: str
    chips: int
    batch: int
    step_s: float
    tokens_per_s: float
    tokens_per_s_per_chip: float
    dollars_per_million_tokens: float | None = None
    best_of: tuple[str, ...] = ()


class Frontier(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`points`: one for each plan, in their order; `dominated`: candidates that some point beats, by latency.

    A point beats another that is no better in any of the `axes`. `missed`: candidates that miss a target.
    """

    axes: tuple[str, ...]
    points: tuple[Point, ...]
    dominated: tuple[Point, ...]
    missed: int


class PlanFile(Value, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The plan file: the JSON that `plan` prints and writes with `-o`; plans are best first.

    `targets`: those that all plans meet, in words; `prices`: dollars per chip and hour. Fields
    that have their default are left out of the file.
    """

    schema: str
    tool_version: str
    objective: str
    plans: tuple[Plan, ...]
    rejected: tuple[Rejected, ...]
    search: Search
    notes: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    prices: dict[str, float] = msgspec.field(default_factory=dict)
    solver: Solver | None = None
    serving: Serving | None = None
    fleet: Fleet | None = None
    frontier: Frontier | None = None

    @property
    def interrupted(self) -> bool:
        """Return whether an interrupt ended the search, or the solver: the plans are the best so far."""
        solver, fleet = self.solver, self.fleet
        return (
            self.search.proved_optimal == INTERRUPTED
            or (solver is not None and solver.interrupted)
            or (fleet is not None and fleet.proof.interrupted)
        )


def encode(value: object) -> bytes:
    """A value as indented JSON, with a final newline."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def read_plan(path: Path) -> PlanFile:
    """Read a plan file; raises `InputError` where it is no plan of this version."""
    return _decode(read_bytes(path, "plan"), path)


def read_bytes(path: Path, kind: str) -> bytes:
    """The file's bytes; raises `InputError` where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read the {kind} file '{path}': {error.strerror}; expected a file that exists"
        ) from None


def read_object(path: Path, kind: str) -> Mapping[str, Any]:
    """The file as a JSON object; raises `InputError` where it is not one."""
    try:
        value = msgspec.json.decode(read_bytes(path, kind))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the {kind} file '{path}' is not JSON: {error}; expected what meshwright wrote") from None
    if not isinstance(value, dict):
        raise InputError(f"the {kind} file '{path}' holds a {type(value).__name__}; expected a JSON object")
    return value


def _decode(data: bytes, path: Path) -> PlanFile:
    value = read_object(path, "plan")
    schema = value.get("schema")
    if schema != SCHEMA:
        raise InputError(
            f"the plan file '{path}' has schema {schema!r}; expected '{SCHEMA}', as `meshwright plan` writes it"
        )
    try:
        file = msgspec.convert(value, PlanFile)
    except (msgspec.ValidationError, InputError) as error:
        raise InputError(f"the plan file '{path}' is not a valid plan: {error}") from None
    for number, plan in enumerate(file.plans, 1):
        if plan.model_hash != plan.model.digest:
            raise InputError(
                f"the plan file '{path}' was edited: plan {number}'s model_hash is not the hash of its model"
            )
    return file


def pick_plan(file: PlanFile, path: Path, pick: int) -> Plan:
    """Plan number `pick` (from 1); raises `InputError` naming how many there are."""
    if not 1 <= pick <= len(file.plans):
        raise InputError(
            f"pick {pick}: expected a plan of '{path}', whose plans are numbered 1 to {len(file.plans)}", "pick"
        )
    return file.plans[pick - 1]
