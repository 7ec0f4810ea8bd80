"""The functions of `import meshwright`: they call the planner's, and give answers with methods (see `answers`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import cleandoc, signature
from typing import Any, ParamSpec, TypeVar

from meshwright import answers
from planner import api
from planner.query.query import QueryOptions, SearchOptions
from planner.sensitivity import sensitivity as of_sensitivity
from planner.validate import validate as of_validate

P = ParamSpec("P")
Kind = TypeVar("Kind", bound=answers.Answer)


def _answering(run: Callable[P, Any], kind: type[Kind], *options: type) -> Callable[P, Kind]:
    """Wrap a function of the planner: its answer is a value of that kind, and its help lists the keywords of `options`.

    `options` are the TypedDicts of its keywords; their docstrings have one entry for each.
    """

    @wraps(run)
    def asked(*args: P.args, **kwargs: P.kwargs) -> Kind:
        answer: Kind = answers.answer_of(run(*args, **kwargs), kind)
        return answer

    asked.__doc__ = "\n\n".join([cleandoc(run.__doc__ or ""), *map(_entries, options)])
    asked.__signature__ = signature(run).replace(return_annotation=kind.__name__)  # type: ignore[attr-defined]
    return asked


def _entries(options: type) -> str:
    """Return the docstring of a TypedDict of keywords without its first line, which says whose they are."""
    return cleandoc(options.__doc__ or "").partition("\n\n")[2]


plan = _answering(api.plan, answers.Plans, SearchOptions, QueryOptions, api.PlanOptions)
pareto = _answering(api.pareto, answers.Plans, SearchOptions, QueryOptions)
serve = _answering(api.serve, answers.Plans, SearchOptions, api.ServeOptions)
fleet = _answering(api.fleet, answers.Plans, SearchOptions, api.FleetOptions)
price = _answering(api.price, answers.Plans, api.PriceOptions)
fits = _answering(api.fits, answers.Fits, SearchOptions, QueryOptions)
sensitivity = _answering(of_sensitivity.sensitivity, answers.Sensitivity)
validate = _answering(of_validate.validate, answers.Validation)
roofline = api.roofline
load = answers.load
