"""The answer of `sensitivity` as typed values. Schema: `meshwright.sensitivity/1`."""

from __future__ import annotations

from planner.plan.plan import Value
from strategies.layout import ComponentLayout, MeshAxes
from strategies.models.workload import Dtypes

SCHEMA = "meshwright.sensitivity/1"


class Best(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The best layout at some hardware numbers."""

    step_s: float
    mesh: MeshAxes
    layouts: tuple[ComponentLayout, ...]


class Change(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A component whose program or roles the best layout changes: each as roles and over how many devices."""

    component: str
    kept: str
    best: str


class Outcome(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One hardware number changed: `value` = `factor` times what it is.

    `kept_s`: the step of the plan's own layout; `kept_fits`: whether that is within usable HBM. `best`: of a search at
    the changed number; None where nothing fits. `regret`: by what share the kept layout is slower than the best one
    (None where nothing fits); `changed`: whether the best layout beats the kept one, or fits where that does not, and
    `changes`: the components in which it differs then (none: it only lies on the torus in another way).
    """

    factor: float
    value: float
    kept_s: float
    kept_fits: bool
    best: Best | None
    regret: float | None
    changed: bool
    changes: tuple[Change, ...]


class QuantityEffect(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One hardware number, less and more of it.

    `elasticity`: d ln(step) / d ln(number) of the kept layout between the two; -1: the step is inversely proportional.
    `best_elasticity`: the same where the layout is chosen again; None where nothing fits with less.
    """

    quantity: str
    unit: str
    value: float
    elasticity: float
    best_elasticity: float | None
    less: Outcome
    more: Outcome


class SensitivityFile(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of `sensitivity`: its plan, the best layout as things are, and each hardware number.

    `regret`: by what share the plan's own layout is slower than the best one as things are.
    """

    schema: str
    tool_version: str
    plan: str
    pick: int
    model: str
    slice: str
    phase: str
    batch: int
    context: int
    dtypes: Dtypes
    swing: float
    step_s: float
    best: Best | None
    regret: float | None
    changes: tuple[Change, ...]
    quantities: tuple[QuantityEffect, ...]
