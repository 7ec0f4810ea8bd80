"""The answers of the public functions, as values that print as tables, explain themselves and save themselves.

Each is the answer of the planner (or a report of `verify`) with methods: all fields are as in the file, and `load`
reads any of these files back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import planner.fits.fits
import planner.plan.plan
import planner.plan.planfile
import planner.sensitivity.types
import planner.validate.scores
from mesh.errors import InputError
from meshwright.reports.text import Block, render
from planner.files import write_whole
from planner.plan.planfile import encode, read_object, read_plan

if TYPE_CHECKING:
    from pandas import DataFrame

    from executor.verdict import Report
    from mesh.chips import Chip
    from strategies.notation import Program


@dataclass(frozen=True)
class Text:
    """A text that prints as it is, and shows as a table in a notebook."""

    blocks: Sequence[Block]

    def __str__(self) -> str:
        return render(self.blocks, "table")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return render(self.blocks, "html")

    def markdown(self) -> str:
        """Return the text as Markdown."""
        return render(self.blocks, "markdown")


class Answer:
    """The methods that every answer has: a report, a file, rows, and a DataFrame."""

    __slots__ = ()

    def report(self) -> Text:
        """Return the whole report, as the command prints it at 100 columns."""
        return Text(self._blocks())

    def save(self, path: str | Path) -> Path:
        """Write the JSON, whole or not at all, and return the path. Raises `InputError` where it cannot be written."""
        write_whole(Path(path), encode(self))
        return Path(path)

    def rows(self) -> list[dict[str, Any]]:
        """Return one mapping of plain values per line of the answer, in seconds, bytes and tokens per second."""
        raise NotImplementedError

    def to_dataframe(self) -> DataFrame:
        """Return the rows as a pandas DataFrame. Raises `ImportError` where pandas is not installed."""
        from pandas import DataFrame

        return DataFrame(self.rows())

    def _blocks(self) -> Sequence[Block]:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return render(self._blocks()[:2], "html")


class Plan(Answer, planner.plan.plan.Plan, frozen=True, kw_only=True):
    """One layout of one model on one slice, with what it costs and why. `specs` are its sharding specs."""

    def explain(self) -> Text:
        """Return every step in the book's notation with sizes, bytes, time and bound; then memory and specs."""
        return self.report()

    def rows(self) -> list[dict[str, Any]]:
        """Return one mapping per step of the bound program, on one device, in seconds, FLOPs and bytes."""
        return [
            {name: getattr(step, name) for name in step.__struct_fields__ if name != "comms"}
            for step in self.cost.steps
        ]

    def _blocks(self) -> Sequence[Block]:
        from meshwright.reports.explain import explanation

        return explanation(self)

    def __repr__(self) -> str:
        what = f"{self.model.name} on {self.slice}, {self.phase}, batch {self.batch}, context {self.context}"
        return f"<Plan: {what}: {self.cost.step_s * 1e3:.4g} ms, {self.memory.total_bytes / 1e9:.2f} GB per device>"


class Plans(Answer, planner.plan.planfile.PlanFile, frozen=True, kw_only=True, omit_defaults=True):
    """Plans, best first, with what was searched and rejected; also ways to serve, fleets and frontiers.

    Iterating, indexing (from 0) and `len` are over the plans.
    """

    plans: tuple[Plan, ...]

    @property
    def best(self) -> Plan:
        """Return the best plan, which is the first."""
        return self.plans[0]

    def __len__(self) -> int:
        return len(self.plans)

    def __iter__(self) -> Iterator[Plan]:
        return iter(self.plans)

    def __getitem__(self, number: int) -> Plan:
        return self.plans[number]

    def rows(self) -> list[dict[str, Any]]:
        """Return one mapping per plan: slice, batch, layout, seconds, tokens per second, bytes per device."""
        return [_row(number, plan) for number, plan in enumerate(self.plans, 1)]

    def _blocks(self) -> Sequence[Block]:
        if self.serving is not None:
            from meshwright.reports.serve import report
        elif self.fleet is not None:
            from meshwright.reports.fleet import report
        elif self.frontier is not None:
            from meshwright.reports import frontier

            return frontier.report(self, self.frontier)
        else:
            from meshwright.reports.plan import report
        return report(self)

    def __repr__(self) -> str:
        more = f"; {len(self.plans) - 1} more" if len(self.plans) > 1 else ""
        best = repr(self.plans[0])[1:-1] if self.plans else "none"
        return f"<Plans by {self.objective}: {best}{more}; proved: {self.search.proved_optimal}>"


def _row(number: int, plan: planner.plan.plan.Plan) -> dict[str, Any]:
    from meshwright.reports.plan import layout_text, mesh_text

    return {
        "plan": number,
        "slice": plan.slice,
        "chips": plan.chips,
        "num_slices": plan.num_slices,
        "phase": plan.phase,
        "batch": plan.batch,
        "context": plan.context,
        "mesh": mesh_text(plan),
        "attention": layout_text(plan, "attention"),
        "mlp": layout_text(plan, "MLP"),
        "lower_bound_s": plan.cost.lower_bound_s,
        "step_s": plan.cost.step_s,
        "upper_bound_s": plan.cost.upper_bound_s,
        "bound_by": plan.cost.bound_by,
        "tokens_per_s": plan.throughput.tokens_per_s,
        "tokens_per_s_per_chip": plan.throughput.tokens_per_s_per_chip,
        "hbm_bytes_per_device": plan.memory.total_bytes,
        "usable_bytes_per_device": plan.memory.usable_bytes,
    }


class Fits(Answer, planner.fits.fits.Fits, frozen=True, kw_only=True):
    """The answer of `fits`: the largest batch and the largest context of each slice."""

    def rows(self) -> list[dict[str, Any]]:
        """Return one mapping per slice."""
        return [
            {
                "slice": row.slice,
                "chips": row.chips,
                "fits": row.fits,
                "largest_batch": row.batch.largest,
                "batch_runs_out": row.batch.runs_out,
                "largest_context": row.context.largest,
                "context_runs_out": row.context.runs_out,
            }
            for row in self.slices
        ]

    def _blocks(self) -> Sequence[Block]:
        from meshwright.reports.fits import report

        return report(self)

    def __repr__(self) -> str:
        asked = f"batch {self.batch} at context {self.context}"
        return f"<Fits of {self.model}, {self.phase}: {len(self.slices)} slices; smallest for {asked}: {self.smallest}>"


class Sensitivity(Answer, planner.sensitivity.types.SensitivityFile, frozen=True, kw_only=True):
    """The answer of `sensitivity`: how the best layout follows from each hardware number."""

    def rows(self) -> list[dict[str, Any]]:
        """Return one mapping per hardware number."""
        return [
            {
                "quantity": one.quantity,
                "value": one.value,
                "unit": one.unit,
                "elasticity": one.elasticity,
                "regret_with_less": one.less.regret,
                "regret_with_more": one.more.regret,
            }
            for one in self.quantities
        ]

    def _blocks(self) -> Sequence[Block]:
        from meshwright.reports.sensitivity import report

        return report(self)

    def __repr__(self) -> str:
        turned = [one.quantity for one in self.quantities if one.less.changed or one.more.changed]
        return f"<Sensitivity of {self.model} on {self.slice} to {self.swing:.0%}: {', '.join(turned) or 'no change'}>"


class Validation(Answer, planner.validate.scores.Validation, frozen=True, kw_only=True):
    """The answer of `validate`: predictions beside published measurements, in seconds, with their relative errors."""

    def rows(self) -> list[dict[str, Any]]:
        """Return one mapping per data set, of its fields that are plain values."""
        plain = (str, int, float, bool, type(None))
        return [{k: v for k, v in msgspec.structs.asdict(one).items() if isinstance(v, plain)} for one in self.sets]

    def _blocks(self) -> Sequence[Block]:
        from meshwright.reports.validate import report

        return report(self)

    def __repr__(self) -> str:
        return (
            f"<Validation: {len(self.sets)} data sets, {'all errors hold' if self.holds else 'an error is exceeded'}>"
        )


def answer_of(value: Any, kind: type[Any]) -> Any:
    """Return the planner's value as an answer of that kind: it has the same fields, and methods."""
    fields = {name: getattr(value, name) for name in value.__struct_fields__}
    if kind is Plans:
        fields["plans"] = tuple(answer_of(plan, Plan) for plan in value.plans)
    return kind(**fields)


def load(path: str | Path) -> Plans | Fits | Sensitivity | Validation | Report | Chip | tuple[Program, ...]:
    """Read any file that meshwright wrote; its `schema`, or its suffix, says what it holds.

    `isinstance` tells a type checker which of them it is.

    Plan files (also of serving, fleets and frontiers), and what `fits`, `sensitivity`, `validate` and `verify` write;
    a chip file (`.toml`) as `Chip`; programs (`.layout`). Raises `InputError` where it is none of these.
    """
    path = Path(path)
    if path.suffix == ".toml":
        from mesh.chips import read_chip

        return read_chip(path)
    if path.suffix == ".layout":
        from strategies.layoutfile import read_layout

        return read_layout(path)
    value = read_object(path, "meshwright")
    kind = str(value.get("schema", "")).partition("/")[0]
    if kind not in READERS:
        known = ", ".join(READERS)
        raise InputError(
            f"'{path}' has schema {value.get('schema')!r}; expected one of {known}, a chip file or .layout"
        )
    answer: Plans | Fits | Sensitivity | Validation | Report = READERS[kind](path, value)
    return answer


def _plans(path: Path, _: Mapping[str, Any]) -> Plans:
    plans: Plans = answer_of(read_plan(path), Plans)
    return plans


def _as(kind: type[Any]) -> Callable[[Path, Mapping[str, Any]], Any]:
    def read(path: Path, value: Mapping[str, Any]) -> Any:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise InputError(f"'{path}' is not what its schema says: {error}") from None

    return read


def _report(path: Path, value: Mapping[str, Any]) -> Any:
    from executor.verdict import Report

    return _as(Report)(path, value)


READERS: dict[str, Callable[[Path, Mapping[str, Any]], Any]] = {
    "meshwright.plan": _plans,
    "meshwright.fits": _as(Fits),
    "meshwright.sensitivity": _as(Sensitivity),
    "meshwright.validation": _as(Validation),
    "meshwright.report": _report,
}
"""What reads each kind of JSON file, by its schema without the version."""
