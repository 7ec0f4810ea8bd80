"""Calibrate: fit at most five constants to measured seconds, with intervals, and score points that were not fitted.

The fit is least squares (scipy) of log(predicted / measured). Each point is trusted to 5%, and outliers count by their
size and not its square. Weak priors at the chip's own constants keep a constant there that the points do not determine.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from mesh.chips import Reached
from planner.validate.terms import Terms
from strategies.readers.rates import Floats

TRUSTED = 0.05
"""Expected relative error of one measurement."""

CONSTANTS = ("hbm", "matmul", "link", "hop", "launch_s")
PRIORS = {"hbm": 0.08, "matmul": 0.12, "link": 0.05, "hop": 0.5, "launch_s": 10e-6}
"""Standard deviations of the priors: shares, multiples of the hop latency, seconds."""

_UNITS = {"launch_s": 1e-6}
_BOUNDS = {"hbm": (0.3, 1.0), "matmul": (0.2, 1.0), "link": (0.2, 1.0), "hop": (0.0, 5.0), "launch_s": (0.0, 500e-6)}


@dataclass(frozen=True)
class ConstantsFit:
    """Fitted constants and, for those that were free, the 95% confidence interval."""

    reached: Reached
    intervals: dict[str, tuple[float, float]]


def fit(
    terms: Terms, measured_s: Floats, start: Reached, free: Sequence[str] = CONSTANTS, *, priors: bool = True
) -> ConstantsFit:
    """Fit the free constants to `measured_s` [points]; the others stay at `start`.

    Without `priors` only the points determine the constants, and the interval scales with their residuals.
    """
    from scipy.optimize import least_squares  # loaded only where something is fitted
    from scipy.stats import t as student

    units = np.array([_UNITS.get(name, 1.0) for name in free])
    low, high = np.array([_BOUNDS[name] for name in free]).T / units
    first_values = np.clip(np.array([getattr(start, name) for name in free]) / units, low + 1e-9, high - 1e-9)
    spread = np.array([PRIORS[name] for name in free]) / units

    def reached(x: Floats) -> Reached:
        """Return the constants of a vector of free ones."""
        return msgspec.structs.replace(start, **dict(zip(free, (x * units).tolist(), strict=True)))

    def errors(x: Floats) -> Floats:
        """Return the log errors [points] in units of the trusted error."""
        return np.asarray(np.log(terms.seconds(reached(x)) / measured_s) / TRUSTED)

    def residuals(x: Floats) -> Floats:
        """Return the residuals to square and sum, with outliers softened and the priors appended."""
        log_errors = errors(x)
        soft_errors = np.sign(log_errors) * np.sqrt(2 * (np.sqrt(1 + log_errors**2) - 1))
        return np.concatenate([soft_errors, (x - first_values) / spread]) if priors else soft_errors

    best = least_squares(
        residuals, first_values, bounds=(low, high), x_scale=spread, xtol=1e-12, ftol=1e-12, gtol=1e-12
    )
    slopes = np.asarray(best.jac, dtype=float)
    freedom = max(1, len(measured_s) - len(free))
    variance = (
        max(1.0, float((errors(best.x) ** 2).sum()) / freedom) if priors else float((best.fun**2).sum()) / freedom
    )
    half_width = student.ppf(0.975, freedom) * np.sqrt(
        np.maximum(0.0, np.diag(np.linalg.pinv(slopes.T @ slopes))) * variance
    )
    ends = zip(np.maximum(low, best.x - half_width) * units, np.minimum(high, best.x + half_width) * units, strict=True)
    return ConstantsFit(reached(best.x), {name: (float(a), float(b)) for name, (a, b) in zip(free, ends, strict=True)})


def left_out(
    terms: Terms,
    measured_s: Floats,
    start: Reached,
    configurations: Sequence[Hashable],
    free: Sequence[str] = CONSTANTS,
    *,
    priors: bool = True,
) -> Floats:
    """Return the seconds [points] predicted for each point by a fit of the points of all other configurations."""
    result = np.empty(len(measured_s))
    for configuration in dict.fromkeys(configurations):
        others = [i for i, name in enumerate(configurations) if name != configuration]
        left_out_points = [i for i, name in enumerate(configurations) if name == configuration]
        constants = fit(terms.of(others), measured_s[others], start, free, priors=priors).reached
        result[left_out_points] = terms.of(left_out_points).seconds(constants)
    return result
