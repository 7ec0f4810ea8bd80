"""Define the result of `sensitivity` as typed values. Schema: `meshwright.sensitivity/1`."""

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
    """A component whose program or roles the best layout changes, each as text: roles and numbers of devices."""

    component: str
    kept: str
    best: str


class Outcome(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The outcome of changing one hardware number to `value`, `factor` times its own.

    `kept_s` is the step of the plan's own layout; `kept_fits` is true where it is within usable HBM. `best` is the
    result of a search at the changed number; None where nothing fits. `regret` is the share by which the kept layout is
    slower than the best one (None where nothing fits). `changed` is true where the best layout beats the kept one, or
    fits where that does not, and `changes` has the components in which it then differs (none: it only lies on the torus
    in another way).
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
    """The sensitivity to one hardware number, with less and more of it.

    `elasticity` is d ln(step) / d ln(number) of the kept layout between the two; -1 means that the step is inversely
    proportional. `best_elasticity` is that of a layout chosen again; None where nothing fits with less.
    """

    quantity: str
    unit: str
    value: float
    elasticity: float
    best_elasticity: float | None
    less: Outcome
    more: Outcome


class SensitivityFile(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The output of `sensitivity`: the plan, the best layout at unchanged numbers, and each hardware number.

    `regret` is the share by which the plan's own layout is slower than the best one at unchanged numbers.
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
