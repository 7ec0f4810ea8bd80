"""Queries of serving that tests ask."""

from __future__ import annotations

from mesh.slices import parse_slice
from planner.plan.file_serving import MODES
from planner.query.query import Query
from planner.serve.query import ServeQuery
from strategies.models.configs import load_model
from strategies.models.workload import Dtypes, Workload


def serve_query(
    slices: tuple[str, ...],
    model: str = "llama-3.1-8b",
    *,
    batches: tuple[int, ...] = (8, 64),
    prefill_batches: tuple[int, ...] = (1, 4),
    modes: tuple[str, ...] = MODES,
    dtype: str = "int8",
    **asked: object,
) -> ServeQuery:
    """Prompts of 1024 tokens and answers of 128, in one dtype; `asked`: other fields of the query."""
    work = Workload(phase="decode", batches=batches, context=1280, dtypes=Dtypes(weights=dtype, kv=dtype))
    named = tuple(parse_slice(one) for one in slices)
    query = Query(model=load_model(model), slices=named, work=work, **asked)  # type: ignore[arg-type]
    return ServeQuery(query=query, input=1024, output=128, prefill_batches=prefill_batches, modes=modes)
