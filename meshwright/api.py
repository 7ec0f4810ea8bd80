"""The functions of `import meshwright`: they call the planner's, and give answers with methods (see `answers`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from meshwright import answers
from planner import api
from planner.sensitivity import sensitivity as of_sensitivity
from planner.validate import validate as of_validate

P = ParamSpec("P")
Kind = TypeVar("Kind", bound=answers.Answer)


def _answering(run: Callable[P, Any], kind: type[Kind]) -> Callable[P, Kind]:
    """Wrap a function of the planner so that its answer is a value of that kind."""

    @wraps(run)
    def asked(*args: P.args, **kwargs: P.kwargs) -> Kind:
        answer: Kind = answers.answer_of(run(*args, **kwargs), kind)
        return answer

    return asked


plan = _answering(api.plan, answers.Plans)
pareto = _answering(api.pareto, answers.Plans)
serve = _answering(api.serve, answers.Plans)
fleet = _answering(api.fleet, answers.Plans)
price = _answering(api.price, answers.Plans)
fits = _answering(api.fits, answers.Fits)
sensitivity = _answering(of_sensitivity.sensitivity, answers.Sensitivity)
validate = _answering(of_validate.validate, answers.Validation)
roofline = api.roofline
load = answers.load
