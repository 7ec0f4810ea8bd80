"""Define the public functions of the planner, as `import meshwright` offers them: keywords become a query here.

`plan`, `pareto`, `fits` and `serve` take a model (a value, a built-in name, a config.json or a folder with one),
slices (values or names, one or several), their own keywords, and those that they share: `QueryOptions` and
`SearchOptions` of `planner.query.query` explain each. One `Query` can replace all of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from mesh.slices import Slice
from planner.plan.accuracy import slice_at
from planner.plan.planfile import PlanFile
from planner.query.query import (
    EXHAUSTIVE,
    Batch,
    Given,
    Progress,
    Query,
    QueryOptions,
    SearchOptions,
    batches_of,
    model_of,
    programs_of,
    query_of,
    silent,
)
from planner.query.slices import named_slice
from strategies.models.models import Model

if TYPE_CHECKING:
    from planner.fits.fits import Fits
    from planner.plan.file_fleet import Traffic
    from strategies.book.rooftable import RooflineTable

Named = Model | str | Path
Slices = Sequence[Slice | str] | Slice | str


class PlanOptions(QueryOptions, total=False):
    """Keywords of `plan` besides those of `QueryOptions`.

    objective: "throughput" (tokens per second and chip), "latency" (seconds of a step) or "cost" (needs `prices`).
    top: how many plans of the best one's slice and batch, itself included.
    num_slices: equal slices connected by DCN, over which each batch is cut (data parallel).
    solver: "exhaustive", or "cp-sat": the best of each slice and batch proved by CP-SAT, without runners-up.
    solver_seconds: the limit of each such proof; None: no limit.
    """

    objective: str
    top: int
    num_slices: int
    solver: str
    solver_seconds: float | None


def query(model: Named, slices: Slices = (), **options: Unpack[PlanOptions]) -> Query:
    """Build the value that `plan`, `pareto` and `fits` take in place of model, slices and keywords.

    With `chips` only the best batch of each slice will have a plan. Raises `InputError` on bad input.
    """
    best = {name: value for name, value in options.items() if name in _BEST}
    rest = {name: value for name, value in options.items() if name not in _BEST}
    batch, num_slices = options.get("batch"), options.get("num_slices", 1)
    if num_slices != 1 and batch is not None and not isinstance(batch, str):
        from planner.best.replicas import batches_per_slice

        rest["batch"] = batches_per_slice(batches_of(batch, "")[0], num_slices)
    return query_of(model, slices, rest, per_slice=bool(options.get("chips")), **best)


_BEST = ("objective", "top", "num_slices", "solver", "solver_seconds")


def _query(
    model: Named | Query, slices: Slices, options: Mapping[str, object], build: Callable[[Named], Query]
) -> Query:
    """Return the query itself, or the one built from model, slices and options; raise `TypeError` on both."""
    if not isinstance(model, Query):
        return build(model)
    if slices or options:
        raise TypeError("a Query says all that is asked; expected no slices and no options beside it")
    return model


def plan(
    model: Named | Query, slices: Slices = (), *, progress: Progress = silent, **options: Unpack[PlanOptions]
) -> PlanFile:
    """Find the best layouts of a model on one or several slices, best first.

    `plan("llama-3.1-70b", "v5e:4x4", batch=64, weights="int8", kv="int8")`. With `chips` only the best batch of each
    slice has a plan. Raises `InputError` on bad input, and `NothingFits` where no layout fits or none meets the
    targets. The keywords are those of `PlanOptions`:
    """
    from planner.best.solve import make_plan

    return make_plan(_query(model, slices, options, lambda named: query(named, slices, **options)), progress)


def pareto(
    model: Named | Query, slices: Slices = (), *, progress: Progress = silent, **options: Unpack[QueryOptions]
) -> PlanFile:
    """Find the frontier of latency, throughput per chip and (with `prices`) cost over slices and batches, by latency.

    Its plans are the points, and `frontier` says what each is the best of and what was dominated. `batch` is "auto" by
    default. Raises InputError on bad input and NothingFits where no layout fits or none meets the targets.
    """
    from planner.frontier.pareto import make_frontier

    auto: QueryOptions = {"batch": "auto"}
    full_query = _query(model, slices, options, lambda named: query_of(named, slices, auto | options))
    return make_frontier(full_query, progress)


def fits(
    model: Named | Query, slices: Slices = (), *, progress: Progress = silent, **options: Unpack[QueryOptions]
) -> Fits:
    """Find the largest batch at `context` and the largest context at `batch` (1) of each slice, and the smallest.

    Raises InputError on bad input.
    """
    from planner.fits.fits import make_fits

    defaults: QueryOptions = {"batch": 1}
    full_query = _query(model, slices, options, lambda named: query_of(named, slices, defaults | options))
    return make_fits(full_query, progress)


class ServeOptions(SearchOptions, total=False):
    """Keywords of `serve` besides those of `SearchOptions`.

    batch: sequences that a decode step holds, one number, several, or "auto".
    prefill_batch: prompts that are prefilled together, one number or several.
    objective: "throughput" (output tokens per second and chip), "latency" (seconds of a request) or "cost".
    top: how many ways to serve; the best of every way is among them.
    solver: "cp-sat": also pairs on one slice that share their weights, each solved within `solver_seconds`.
    """

    batch: Batch
    prefill_batch: int | Sequence[int]
    objective: str
    top: int
    solver: str
    solver_seconds: float | None


def serve(
    model: Named,
    slices: Slices = (),
    *,
    input_tokens: int,
    output_tokens: int,
    serving: Sequence[str] | None = None,
    progress: Progress = silent,
    **options: Unpack[ServeOptions],
) -> PlanFile:
    """Find the best ways to serve prompts of `input_tokens` with `output_tokens` each: `serving` of the plan file.

    `serving`: some of "batched", "interleaved", "disaggregated"; None: all. Raises InputError on bad input and
    NothingFits where no way to serve fits or meets the targets.
    """
    from planner.plan.file_serving import MODES
    from planner.serve.query import ServeQuery
    from planner.serve.serve import make_serving

    keywords = dict(options)
    prompts, _ = batches_of(keywords.pop("prefill_batch", None), "prefill")  # type: ignore[arg-type]
    query = query_of(
        model,
        slices,
        keywords,
        objective=keywords.pop("objective", "throughput"),
        top=keywords.pop("top", 5),
        solver=keywords.pop("solver", EXHAUSTIVE),
        solver_seconds=keywords.pop("solver_seconds", None),
    )
    modes = MODES if serving is None else tuple(dict.fromkeys(serving))
    serve_query = ServeQuery(
        query=query, input=input_tokens, output=output_tokens, prefill_batches=prompts, modes=modes
    )
    return make_serving(serve_query, progress)


class FleetOptions(SearchOptions, total=False):
    """Keywords of `fleet` besides those of `SearchOptions`.

    prefill_batch: prompts that are prefilled together, one number or several.
    decode_batch: sequences that a decode server holds, one number or several; by default powers of two and the
        largest that fits.
    utilisation: the share of each role's rate that the traffic may take.
    solver_seconds: where CP-SAT is ended; its best so far counts.
    """

    prefill_batch: int | Sequence[int]
    decode_batch: int | Sequence[int] | None
    utilisation: float
    solver_seconds: float | None


def fleet(
    model: Named,
    quota: Mapping[str, int],
    traffic: Traffic | Mapping[str, float],
    *,
    progress: Progress = silent,
    **options: Unpack[FleetOptions],
) -> PlanFile:
    """Find the cheapest fleet of prefill and decode servers that serves the traffic: `fleet` of the plan file.

    `quota`: chips by kind, as {"v5e": 256}; `traffic`: a `Traffic`, or {"requests_per_s": 20, "input": 2000,
    "output": 300}; without `prices` the cheapest fleet has the fewest chips. An interrupt, or the end of
    `solver_seconds`, gives the best so far: `fleet.proof` says so.
    Raises InputError on bad input, and NoFleet (a NothingFits) where no fleet does it.
    """
    from planner.fleet.fleet import make_fleet
    from planner.fleet.query import fleet_query

    return make_fleet(fleet_query(model, quota, traffic, dict(options)), progress)


class PriceOptions(TypedDict, total=False):
    """Keywords of `price`.

    phase: "decode" or "prefill".
    batch: one batch or several.
    context: tokens in each filled cache (decode) or in each prompt (prefill).
    weights, kv, activations, compute: dtypes; "bf16" by default, compute: the activations'.
    programs: `.layout` files with programs that the layout uses.
    chip_file: a chip file, whose chip is known by its name, too.
    constants: the share of the data sheet that programs reach: "chip", "data-sheet", or a data set's.
    """

    phase: str
    batch: int | Sequence[int] | None
    context: int
    weights: str
    kv: str
    activations: str
    compute: str | None
    programs: Sequence[str | Path]
    chip_file: str | Path | None
    constants: str


def price(
    model: Named, slice_: Slice | str, layout: str | Path, *, pick: int = 1, **options: Unpack[PriceOptions]
) -> PlanFile:
    """Price one given layout without a search: that of a layout file, or of plan number `pick` of a plan file.

    It is not checked whether the layout fits into memory: compare `memory.total_bytes` with `memory.usable_bytes` of
    each plan. Raises `InputError` on bad input, and where the layout does not belong to this model and slice.
    """
    from planner.plan.layout_file import price_given

    keywords = Given(options)
    work, _ = keywords.work()
    slice_at_constants = slice_at(named_slice(slice_, keywords.take("chip_file")), keywords.take("constants", "chip"))
    programs = programs_of(keywords.take("programs", ()))
    keywords.finish()
    return price_given(model_of(model), slice_at_constants, work, Path(layout), programs, pick)


class RooflineOptions(TypedDict, total=False):
    """Keywords of `roofline`; `kv_heads` changes the cache only, all else is as in `QueryOptions`."""

    batch: int | Sequence[int] | None
    context: int
    weights: str
    kv: str
    compute: str | None
    chip_file: str | Path | None
    kv_heads: int | None


def roofline(model: Named, slice_: Slice | str, **options: Unpack[RooflineOptions]) -> RooflineTable:
    """Compute the chapter's step-time table: everything cut evenly, ICI free. Raises InputError on bad input."""
    from strategies.book.rooftable import roofline_table

    keywords = Given(options)
    work, _ = keywords.work()
    named, kv_heads = named_slice(slice_, keywords.take("chip_file")), keywords.take("kv_heads")
    keywords.finish()
    return roofline_table(
        model_of(model),
        named,
        context=work.context,
        batches=work.batches,
        weights=work.dtypes.weights,
        kv=work.dtypes.kv,
        compute=work.dtypes.compute,
        kv_heads=kv_heads,
    )
