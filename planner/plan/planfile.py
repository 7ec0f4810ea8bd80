"""Define the plan file: plans, best first, and what was searched and excluded. Schema: `meshwright.plan/1`."""

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
"""Value of `Search.proved_optimal` where an interrupt ended the search."""
LATENCY, THROUGHPUT, COST = "latency", "throughput", "cost"


class Example(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A worked example of an exclusion: bytes or sizes that are needed, and those that there are."""

    need: str
    have: str


class Rejected(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Count the assignments that a reason excluded, with one example."""

    reason: str
    count: int
    example: Example


class Search(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The extent of the search, and its proof.

    `candidates` counts the layouts covered, `evaluations` the programs priced. `wall_s` is of the whole plan, pricing
    the best in full included; `evaluations_per_s` of the search of all slices.

    `proved_optimal` names the proof, such as `exhaustive`, the solver's name with its gap, `interrupted`, or `given`
    for a layout that was priced without a search.
    """

    candidates: int
    evaluations: int
    wall_s: float
    proved_optimal: str
    evaluations_per_s: float = 0.0


class Point(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The best layout of one slice and batch as a point of the frontier.

    `dollars_per_million_tokens` is set where its chip has a price. `best_of` lists the objectives of which no candidate
    has a better value.
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
    """The Pareto front: one point for each plan, in the plans' order.

    `dominated` lists, by latency, the candidates that some point dominates: that are no better in any of the `axes`.
    `missed` counts the candidates that miss a target.
    """

    axes: tuple[str, ...]
    points: tuple[Point, ...]
    dominated: tuple[Point, ...]
    missed: int


class PlanFile(Value, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything that `plan` prints as JSON and writes with `-o`; plans are best first.

    `targets` states in words the targets that all plans meet; `prices` are dollars per chip and hour. Fields that have
    their default are left out of the file.
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
        """True where an interrupt ended the search or the solver: the plans are the best so far."""
        solver, fleet = self.solver, self.fleet
        return (
            self.search.proved_optimal == INTERRUPTED
            or (solver is not None and solver.interrupted)
            or (fleet is not None and fleet.proof.interrupted)
        )


def encode(value: object) -> bytes:
    """Return a value as indented JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def read_plan(path: Path) -> PlanFile:
    """Read a plan file; raise `InputError` where it is not a plan of this version."""
    return _decode(read_bytes(path, "plan"), path)


def read_bytes(path: Path, kind: str) -> bytes:
    """Return the file's bytes; raise `InputError` where it cannot be read. `kind` names it in the message."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read the {kind} file '{path}': {error.strerror}; expected a file that exists"
        ) from None


def read_object(path: Path, kind: str) -> Mapping[str, Any]:
    """Return the file's JSON object; raise `InputError` where it does not contain one."""
    try:
        value = msgspec.json.decode(read_bytes(path, kind))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the {kind} file '{path}' is not JSON: {error}; expected what meshwright wrote") from None
    if not isinstance(value, dict):
        raise InputError(f"the {kind} file '{path}' holds a {type(value).__name__}; expected a JSON object")
    return value


def _decode(data: bytes, path: Path) -> PlanFile:
    """Return the plan file of these bytes, with its schema and model hashes checked."""
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
    """Return plan number `pick` (from 1); raise `InputError` with the number of plans otherwise."""
    if not 1 <= pick <= len(file.plans):
        raise InputError(
            f"pick {pick}: expected a plan of '{path}', whose plans are numbered 1 to {len(file.plans)}", "pick"
        )
    return file.plans[pick - 1]
