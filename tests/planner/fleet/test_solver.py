"""Numbers of servers: the chapter's examples, brute force, bounds, reasons, and what never makes a fleet worse."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest

from planner.fleet.problem import ROLES, FleetProblem, Server, check_fleet, first_guess, least_cost, whole_numbers
from planner.fleet.reasons import missing_chips, most_requests_per_s, quota_reason
from planner.fleet.solver import FleetModel, solve_fleet

PG = {"prefill_s": 0.91, "decode_s": 0.019, "slots": 32, "output": 512, "printed": 3}
"""The Scaling Book, chapter 8, id ch8.PG: prefill servers per decode server."""

TOPOLOGIES = {"bf16": (16, 43, 0.019, 0.27, 0.44), "int8": (8, 43, 0.019, 0.55, 0.90)}
"""The same, ids ch8.min_topology_*: chips, requests in flight, step_s, printed QPS per chip, and on twice the chips."""

JUST_BELOW = 1 - 1e-9
"""A product of floats may be above the exact one, which the servers would then miss by the last bit."""


def server(role: str, rate: float, chips: int = 1, chip: str = "v5e", cost: int | None = None) -> Server:
    """A server of that rate; without a cost it costs its chips."""
    price = Fraction(chips if cost is None else cost)
    return Server(f"{chip}-{chips} {role} {rate}", chip, chips, role, rate, price)


def solved(problem: FleetProblem) -> tuple[int, ...]:
    """The proved counts."""
    found = solve_fleet(problem)
    assert found.counts is not None
    assert found.proof is not None
    assert found.proof.status == "optimal"
    return found.counts


def test_chapter_8_needs_three_prefill_servers_per_decode_server() -> None:
    """ch8.PG: 0.91 s of prefill, 32 slots of 512 tokens at 19 ms: three prefill servers feed one decode server."""
    prefill = server("prefill", 1 / PG["prefill_s"], 16)
    decode = server("decode", PG["slots"] / (PG["output"] * PG["decode_s"]), 16)
    assert solved(FleetProblem([prefill, decode], decode.requests_per_s, {"v5e": 1000})) == (PG["printed"], 1)
    many = solved(FleetProblem([prefill, decode], JUST_BELOW * 100 * decode.requests_per_s, {"v5e": 10_000}))
    assert many == (300, 100)  # the exact ratio is 2.9934: 299.3 prefill servers


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_chapter_8_requests_per_second_and_chip(dtype: str) -> None:
    """ch8.min_topology: 43 requests of 512 tokens at 19 ms give the printed QPS per chip; a fleet needs such chips."""
    chips, requests, step_s, printed, _ = TOPOLOGIES[dtype]
    rate = requests / (512 * step_s)
    assert rate / chips == pytest.approx(printed, abs=0.01)
    decode, prefill = server("decode", rate, chips), server("prefill", 1e6)
    traffic = 100 * printed
    counts = solved(FleetProblem([decode, prefill], traffic, {"v5e": 1000}))
    assert counts == (-(-traffic // rate), 1)
    assert counts[0] * chips == pytest.approx(100, abs=chips)


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_chapter_8_doubled_slices_serve_more_per_chip(dtype: str) -> None:
    """ch8.min_topology doubled: the larger slice is chosen for its printed QPS per chip, 0.44 and 0.90."""
    chips, _, _, once, doubled = TOPOLOGIES[dtype]
    small, large = server("decode", once * chips, chips), server("decode", doubled * 2 * chips, 2 * chips)
    prefill = server("prefill", 1e6)
    counts = solved(FleetProblem([small, large, prefill], JUST_BELOW * 5 * large.requests_per_s, {"v5e": 100_000}))
    assert counts == (0, 5, 1)


def drawn(seed: int) -> FleetProblem:
    """A small random fleet: one or two chips, two to five servers, some excluded pairs; quotas that bind and do not."""
    r = random.Random(seed)
    names = ["v5e", "v6e"][: r.randint(1, 2)]
    servers = []
    for i in range(r.randint(2, 5)):
        rate = r.choice([float(r.randint(1, 20)), r.uniform(0.1, 20)])
        chips, price = r.choice([1, 2, 4, 8]), Fraction(r.randint(1, 30), 10)
        role = ROLES[i] if i < 2 else r.choice(ROLES)
        servers.append(Server(f"s{i}", r.choice(names), chips, role, rate, chips * price, r.random()))
    pairs = [(i, j) for i, j in product(range(len(servers)), repeat=2) if r.random() < 0.15]
    excluded = [(i, j) for i, j in pairs if (servers[i].role, servers[j].role) == ROLES]
    demand = r.choice([float(r.randint(1, 30)), r.uniform(1, 30)])
    return FleetProblem(servers, demand, {name: r.randint(2, 12) for name in names}, excluded)


def allowed(problem: FleetProblem, counts: Sequence[int]) -> bool:
    """Whether counts keep every promise, by the definition."""
    return (
        all(problem.used(counts, chip) <= most for chip, most in problem.quota.items())
        and not any(counts[i] and counts[j] for i, j in problem.excluded)
        and all(problem.rate(counts, role) >= Fraction(problem.demand_per_s) for role in ROLES)
    )


def brute_force(problem: FleetProblem) -> tuple[int, ...] | None:
    """The best counts of all there are, by cost, chips, servers and sum of steps."""

    def key(counts: tuple[int, ...]) -> tuple[object, ...]:
        chips = sum(n * s.chips for n, s in zip(counts, problem.servers, strict=True))
        steps = sum(n * s.step_s for n, s in zip(counts, problem.servers, strict=True))
        return problem.cost(counts), chips, sum(counts), steps

    most = [problem.quota.get(s.chip, 0) // s.chips for s in problem.servers]
    every = product(*(range(n + 1) for n in most))
    return min((counts for counts in every if allowed(problem, counts)), key=key, default=None)


@pytest.mark.parametrize("first", range(0, 160, 20))
def test_brute_force_over_counts_agrees(first: int) -> None:
    """On 160 random small fleets CP-SAT gives the counts that trying all of them gives, ties included."""
    for seed in range(first, first + 20):
        problem = drawn(seed)
        expected, found = brute_force(problem), solve_fleet(problem)
        assert found.counts == expected, seed
        if found.proof:
            assert found.proof.status == "optimal"
            assert found.proof.gap == 0
            assert found.proof.bound == found.proof.objective == float(problem.cost(found.counts or ()))


def test_random_fleets_are_of_both_kinds() -> None:
    """The random fleets hold enough of those that can serve and of those that cannot."""
    possible = sum(solve_fleet(drawn(seed)).counts is not None for seed in range(160))
    assert 40 <= possible <= 120


def test_order_of_servers_and_quota_does_not_matter() -> None:
    """Servers and quota the other way round give the same counts of the same servers."""
    for seed in range(30):
        problem = drawn(seed)
        last = len(problem.servers) - 1
        turned = FleetProblem(
            list(reversed(problem.servers)),
            problem.demand_per_s,
            dict(reversed(problem.quota.items())),
            [(last - i, last - j) for i, j in problem.excluded],
        )
        counts, again = solve_fleet(problem).counts, solve_fleet(turned).counts
        assert again == (None if counts is None else counts[::-1])


def test_a_larger_quota_never_makes_it_worse() -> None:
    """With more chips of any kind the cost does not rise, and a fleet stays possible."""
    for seed in range(40):
        problem = drawn(seed)
        less = solve_fleet(problem)
        more = solve_fleet(replace(problem, quota={chip: n + 3 for chip, n in problem.quota.items()}))
        if less.counts is not None:
            assert more.counts is not None
            assert problem.cost(more.counts) <= problem.cost(less.counts)


def test_fewer_excluded_pairs_never_make_it_worse() -> None:
    """A looser target bars fewer pairs: the cost does not rise."""
    for seed in range(60):
        problem = drawn(seed)
        tight, loose = solve_fleet(problem), solve_fleet(replace(problem, excluded=list(problem.excluded)[1:]))
        if tight.counts is not None:
            assert loose.counts is not None
            assert problem.cost(loose.counts) <= problem.cost(tight.counts)


def test_a_server_that_just_serves_the_demand_is_enough() -> None:
    """Rounding never asks for a second server where the rate equals the demand."""
    for rate in (1.0, 0.1, 1.2875919374363467, 3e5, 7e-3):
        assert solved(FleetProblem([server("prefill", rate), server("decode", rate)], rate, {"v5e": 9})) == (1, 1)


def test_rates_are_never_rounded_up() -> None:
    """Three servers of a third less a hair do not serve one request per second: a fourth is added."""
    hair = 1 / 3 - 1e-9
    assert solved(FleetProblem([server("prefill", hair), server("decode", 1.0)], 1.0, {"v5e": 9})) == (4, 1)


def test_the_bound_by_arithmetic_is_below_every_fleet() -> None:
    """What divisible servers would cost bounds the proved cost from below."""
    for seed in range(60):
        problem = drawn(seed)
        counts = solve_fleet(problem).counts
        if counts is not None:
            assert 0 < least_cost(problem) <= problem.cost(counts)


def test_the_first_guess_is_a_fleet() -> None:
    """What the greedy guess finds keeps every promise, and it finds most fleets that there are."""
    guessed = 0
    for seed in range(160):
        problem = drawn(seed)
        guess = first_guess(problem, whole_numbers(problem))
        if guess is not None:
            check_fleet(problem, guess)
            guessed += 1
    assert guessed >= 20


def hard_problem(kinds: int = 12) -> FleetProblem:
    """A fleet that takes the solver a while: many servers of odd rates, and quotas that bind."""
    r = random.Random(5)
    servers = [
        Server(f"s{i}", chip, chips, role, r.uniform(0.9, 1) * chips, Fraction(r.randint(95, 99) * chips), r.random())
        for i, (chip, role, chips) in enumerate(product(("v5e", "v6e"), ROLES, range(3, 3 + kinds)))
    ]
    return FleetProblem(servers, 400.0, {"v5e": 450, "v6e": 450})


def test_a_time_limit_gives_the_best_so_far_with_bound_and_gap() -> None:
    """A limit that ends the solver at once leaves a fleet that holds, and a gap that its bound explains."""
    problem = hard_problem()
    found = solve_fleet(problem, 1e-6)
    assert found.counts is not None
    assert found.proof is not None
    assert found.ended == "time limit"
    assert (found.proof.status, found.proof.seconds, found.proof.interrupted) == ("feasible", 1e-6, False)
    check_fleet(problem, found.counts)
    assert 0 < found.proof.bound < found.proof.objective == float(problem.cost(found.counts))
    assert found.proof.gap == pytest.approx(1 - found.proof.bound / found.proof.objective)
    proved = solve_fleet(problem).proof
    assert proved is not None
    assert found.proof.bound <= proved.objective <= found.proof.objective


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_stops_the_solver_and_keeps_its_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGINT during the solve gives a fleet that holds, marked as interrupted; it is not swallowed."""
    from ortools.sat.python import cp_model

    stopped, solve, stop = threading.Event(), cp_model.CpSolver.solve, cp_model.CpSolver.stop_search

    def slow(self: cp_model.CpSolver, model: cp_model.CpModel) -> cp_model.CpSolverStatus:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        assert stopped.wait(20)
        return solve(self, model)

    def stopping(self: cp_model.CpSolver) -> None:
        stopped.set()
        stop(self)

    monkeypatch.setattr(cp_model.CpSolver, "solve", slow)
    monkeypatch.setattr(cp_model.CpSolver, "stop_search", stopping)
    problem = hard_problem()
    found = solve_fleet(problem)
    assert found.ended == "interrupt"
    assert found.counts is not None
    assert found.proof is not None
    assert found.proof.interrupted
    check_fleet(problem, found.counts)


def test_prices_decide_between_kinds_of_chips() -> None:
    """The same servers on two chips: the cheaper kind is taken as far as its quota goes."""
    servers = [server("prefill", 1.0, 2, "v5e", 2), server("decode", 1.0, 2, "v5e", 2)]
    servers += [server("prefill", 1.0, 1, "v6e", 5), server("decode", 1.0, 1, "v6e", 5)]
    assert sum(solved(FleetProblem(servers, 3.0, {"v5e": 100, "v6e": 100}))[:2]) == 6
    counts = solved(FleetProblem(servers, 3.0, {"v5e": 8, "v6e": 100}))
    assert (sum(counts[:2]), sum(counts[2:])) == (4, 2)


def test_of_equal_costs_the_shorter_steps_win() -> None:
    """A smaller batch that still serves the traffic is taken: same chips, shorter steps."""
    slow = Server("slow", "v5e", 4, "decode", 9.0, Fraction(4), 0.03)
    fast = Server("fast", "v5e", 4, "decode", 5.0, Fraction(4), 0.01)
    prefill = server("prefill", 9.0)
    assert solved(FleetProblem([slow, fast, prefill], 4.0, {"v5e": 20})) == (0, 1, 1)
    assert solved(FleetProblem([slow, fast, prefill], 6.0, {"v5e": 20})) == (1, 0, 1)


def test_excluded_pairs_are_never_both_used() -> None:
    """The cheap decode server that may not be with the only prefill server is not used."""
    servers = [server("prefill", 5.0), server("decode", 5.0, 1), server("decode", 5.0, 4)]
    assert solved(FleetProblem(servers, 5.0, {"v5e": 10})) == (1, 1, 0)
    assert solved(FleetProblem(servers, 5.0, {"v5e": 10}, [(0, 1)])) == (1, 0, 1)


@pytest.mark.parametrize(
    ("counts", "why"),
    [
        ((1, 2), "prefill requests/s"),
        ((2, 1), "decode requests/s"),
        ((2, 9), "above the quota"),
        ((-1, 9), "negative"),
    ],
)
def test_an_answer_that_does_not_hold_fails_loudly(counts: tuple[int, int], why: str) -> None:
    """The check with fractions names the promise that is broken."""
    problem = FleetProblem([server("prefill", 1.0, 2), server("decode", 1.0)], 2.0, {"v5e": 8})
    with pytest.raises(RuntimeError, match=why):
        check_fleet(problem, counts)
    check_fleet(problem, (2, 2))
    with pytest.raises(RuntimeError, match="may not be together"):
        check_fleet(replace(problem, excluded=[(0, 1)]), (2, 2))


def test_a_wrong_answer_of_the_solver_fails_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver that returns one server too few is caught."""
    real = FleetModel.break_ties
    monkeypatch.setattr(FleetModel, "break_ties", lambda self, counts: tuple(max(0, n - 1) for n in real(self, counts)))
    problem = FleetProblem([server("prefill", 1.0), server("decode", 1.0)], 2.0, {"v5e": 8})
    with pytest.raises(RuntimeError, match="prefill requests/s"):
        solve_fleet(problem)


def test_a_short_quota_says_which_phase_is_short_and_what_would_do() -> None:
    """8 chips of prefill do 4 requests/s of 5, decode serves all: 1/s is missing, and 4 more chips would do."""
    problem = FleetProblem([server("prefill", 1.0, 2), server("decode", 5.0, 2)], 5.0, {"v5e": 8})
    assert solve_fleet(problem).counts is None
    assert most_requests_per_s(problem, "prefill") == 4
    assert most_requests_per_s(problem, "decode") == 20
    assert missing_chips(problem) == {"v5e": 4}
    assert quota_reason(problem) == (
        "the quota v5e=8 is too small for 5.000 requests/s; as prefill servers alone it serves at most 4.000/s and as "
        "decode servers alone it serves at most 20.00/s; prefill is 1.000/s short; 4 more v5e (v5e=12) would do, in "
        "slices of sizes that the quota holds now"
    )


def test_a_quota_for_either_role_but_not_for_both_is_said_so() -> None:
    """Each role alone fits, both do not."""
    problem = FleetProblem([server("prefill", 1.0), server("decode", 1.0)], 3.0, {"v5e": 5})
    assert "but not both at once; 1 more v5e (v5e=6) would do" in quota_reason(problem)


def test_what_is_missing_is_enough_and_no_more() -> None:
    """With the missing chips there is a fleet; with one chip less of any kind there is none."""
    tried = 0
    for seed in range(80):
        problem = drawn(seed)
        more = missing_chips(problem)
        if solve_fleet(problem).counts is None and more is not None:
            quota = {chip: n + more.get(chip, 0) for chip, n in problem.quota.items()}
            assert solve_fleet(replace(problem, quota=quota)).counts is not None
            for chip, extra in more.items():
                if extra:
                    less = quota | {chip: quota[chip] - 1}
                    assert solve_fleet(replace(problem, quota=less)).counts is None
            tried += 1
    assert tried >= 10


def test_prices_with_endless_digits_still_fit_the_solver() -> None:
    """Costs whose common denominator is beyond 64 bits are scaled, and the cheapest fleet stays the cheapest."""
    odd = [Server(f"d{i}", "v5e", 1, "decode", 1.0, Fraction(repr(1 / (i + 3)))) for i in range(4)]
    counts = solved(FleetProblem([*odd, server("prefill", 9.0)], 7.0, {"v5e": 1000}))
    assert counts == (0, 0, 0, 7, 1)
