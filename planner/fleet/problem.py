"""State a fleet as a problem in numbers: servers, demand, quota; its integers; a bound and a guess by arithmetic.

With n_i servers of kind i, each of rate_i requests/s on chips_i chips:

    minimise    sum of n_i * cost_i
    such that   sum of n_i * rate_i over a role's servers >= demand        for prefill, and for decode
                sum of n_i * chips_i over a chip's servers <= its quota    for every chip
                n_i = 0 or n_j = 0                                         for every excluded pair (i, j)

This module does not depend on models or slices.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, gcd, lcm

ROLES = ("prefill", "decode")
_DEMAND_BITS = 40
_LARGEST_SUM = 1 << 60


@dataclass(frozen=True)
class Server:
    """A kind of server: one slice of `chips` chips in one role (`prefill`, `decode`), its rate and cost.

    `step_s` only breaks ties: of fleets of equal cost, chips and servers, the one with the least sum of steps wins.
    """

    name: str
    chip: str
    chips: int
    role: str
    requests_per_s: float
    cost: Fraction
    step_s: float = 0.0


@dataclass(frozen=True)
class FleetProblem:
    """The servers to choose from, the demand, the quota, and the pairs that exclude each other.

    `demand_per_s` is the requests/s that each role must serve, `quota` the chips by kind, `excluded` pairs of numbers
    of servers that one fleet may not have both.

    >>> prefill = Server("p", "v5e", 4, "prefill", 10.0, Fraction(4))
    >>> decode = Server("d", "v5e", 8, "decode", 5.0, Fraction(8))
    >>> problem = FleetProblem([prefill, decode], 20.0, {"v5e": 64})
    >>> problem.used((2, 4), "v5e"), float(problem.rate((2, 4), "decode")), float(problem.cost((2, 4)))
    (40, 20.0, 40.0)
    >>> first_guess(problem, whole_numbers(problem))
    (2, 4)
    """

    servers: Sequence[Server]
    demand_per_s: float
    quota: Mapping[str, int]
    excluded: Collection[tuple[int, int]] = ()

    def rate(self, counts: Sequence[int], role: str) -> Fraction:
        """Return the requests/s of all servers of a role, exactly."""
        pairs = zip(self.servers, counts, strict=True)
        return sum((n * Fraction(s.requests_per_s) for s, n in pairs if s.role == role), Fraction())

    def cost(self, counts: Sequence[int]) -> Fraction:
        """Return the cost of all servers, exactly."""
        return sum((n * s.cost for s, n in zip(self.servers, counts, strict=True)), Fraction())

    def used(self, counts: Sequence[int], chip: str) -> int:
        """Return the chips of a kind that all servers take."""
        return sum(n * s.chips for s, n in zip(self.servers, counts, strict=True) if s.chip == chip)


def check_fleet(problem: FleetProblem, counts: Sequence[int]) -> None:
    """Check an answer with exact arithmetic; raise `RuntimeError` with the first constraint that it violates."""
    if any(n < 0 for n in counts):
        raise RuntimeError(f"the solver gave a negative number of servers: {counts}")
    for role in ROLES:
        if problem.rate(counts, role) < Fraction(problem.demand_per_s):
            raise RuntimeError(
                f"the solver's fleet serves {float(problem.rate(counts, role))!r} {role} requests/s of "
                f"{problem.demand_per_s!r}: {counts}"
            )
    for chip in sorted({s.chip for s in problem.servers}):
        if problem.used(counts, chip) > problem.quota.get(chip, 0):
            raise RuntimeError(f"the solver's fleet takes {problem.used(counts, chip)} {chip}, above the quota")
    for i, j in problem.excluded:
        if counts[i] and counts[j]:
            raise RuntimeError(f"the solver's fleet has servers {i} and {j}, which may not be together: {counts}")


@dataclass(frozen=True)
class IntegerProblem:
    """The problem in integers: rates, their demand, an upper limit of each server, and costs.

    A cost divided by `cost_scale` is in dollars per hour, or in chips.
    """

    rates: tuple[int, ...]
    demand: int
    most: tuple[int, ...]
    costs: tuple[int, ...]
    cost_scale: Fraction


def whole_numbers(problem: FleetProblem) -> IntegerProblem:
    """Return the problem in integers.

    Rates are capped at the demand, as no server is needed for more. The limit of a kind of server is the number that
    serves the demand alone, or that the quota allows.
    """
    demand = Fraction(problem.demand_per_s)
    bits = _DEMAND_BITS - (demand.numerator.bit_length() - demand.denominator.bit_length())
    scale = Fraction(2) ** bits
    need = ceil(demand * scale)
    exact = [Fraction(s.requests_per_s) for s in problem.servers]
    rates = tuple(need if rate >= demand else floor(rate * scale) for rate in exact)
    most_servers = tuple(
        min(problem.quota.get(s.chip, 0) // s.chips, -(-need // r)) if r else 0
        for s, r in zip(problem.servers, rates, strict=True)
    )
    costs, cost_scale = _whole_costs([s.cost for s in problem.servers], most_servers)
    return IntegerProblem(rates, need, most_servers, costs, cost_scale)


def _whole_costs(costs: Sequence[Fraction], most_servers: Sequence[int]) -> tuple[tuple[int, ...], Fraction]:
    """Return costs as integers, exact unless their sum would be too large for the solver, and their scale."""
    scale = Fraction(lcm(*(c.denominator for c in costs)))
    while sum(c * n for c, n in zip(costs, most_servers, strict=True)) * scale > _LARGEST_SUM:
        scale /= 10
    return tuple(round(c * scale) for c in costs), scale


def whole_cost(problem: FleetProblem, bound: Fraction) -> Fraction:
    """Return the least cost at or above a bound that whole servers can have: a multiple of the costs' divisor."""
    common = lcm(*(s.cost.denominator for s in problem.servers))
    unit = Fraction(gcd(*(int(s.cost * common) for s in problem.servers)), common)
    return ceil(bound / unit) * unit if unit else bound


def least_cost(problem: FleetProblem) -> Fraction:
    """Return a lower bound of the cost: each role's demand at its servers' least cost per request.

    It is the cost if servers were divisible and the quota unlimited.
    """
    demand, total = Fraction(problem.demand_per_s), Fraction()
    for role in ROLES:
        rated = [s for s in problem.servers if s.role == role and s.requests_per_s > 0]
        total += min(s.cost / min(Fraction(s.requests_per_s), demand) for s in rated) * demand if rated else 0
    return total


def first_guess(problem: FleetProblem, integers: IntegerProblem) -> tuple[int, ...] | None:
    """Return a greedy fleet, or None: for each role the servers with the least cost per request within the quota."""
    counts, left_chips = [0] * len(problem.servers), dict(problem.quota)
    for role in ROLES:
        missing_rate = integers.demand
        in_role = [i for i, s in enumerate(problem.servers) if s.role == role and integers.most[i]]
        for i in sorted(
            in_role, key=lambda i: (Fraction(integers.costs[i], integers.rates[i]), problem.servers[i].step_s, i)
        ):
            server = problem.servers[i]
            if missing_rate <= 0 or any(counts[a + b - i] for a, b in problem.excluded if i in (a, b)):
                continue
            counts[i] = min(left_chips[server.chip] // server.chips, -(-missing_rate // integers.rates[i]))
            left_chips[server.chip] -= counts[i] * server.chips
            missing_rate -= counts[i] * integers.rates[i]
        if missing_rate > 0:
            return None
    return tuple(counts)
