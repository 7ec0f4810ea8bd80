"""Fleets of real models: rates, seconds and costs by hand, targets, reasons, and what never makes a fleet worse."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from helpers.levels import check_plan_file
from oracles.even_transfer import transfer_s as even_transfer_s

import meshwright
from mesh.errors import InputError
from mesh.slices import Slice, parse_slice
from meshwright import commandline
from meshwright.reports.fleet import report
from meshwright.reports.text import render
from planner.api import fleet
from planner.best.sweep import search_slice
from planner.fleet import servers as fleet_servers
from planner.fleet.fleet import NoFleet
from planner.fleet.problem import ROLES
from planner.fleet.query import FleetQuery, quota_slices
from planner.fleet.servers import ServerOption, server_option, transfer_s, ttft_s
from planner.plan.file_fleet import Fleet, Traffic
from planner.plan.plan import Plan
from planner.plan.planfile import PlanFile, encode, read_plan
from planner.plan.transfer import DCN_LATENCY_S
from planner.query.query import Query
from planner.query.targets import Targets
from planner.search.candidate import Candidate, price_candidate, problem_of
from planner.search.problem import Problem, SearchResult
from strategies.models.configs import load_model
from strategies.models.workload import Dtypes, Workload

MODEL = "llama-3.1-8b"
TRAFFIC = Traffic(requests_per_s=12.0, input=2000, output=300)
PRICES = {"v5e": 1.2, "v6e": 2.7}
CACHE_BYTES = 2 * 8 * 128 * 32 * 2000
"""K and V of 2000 tokens: 8 heads of 128 in 32 layers, one byte each."""


@pytest.fixture(autouse=True)
def _each_search_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests ask again for the same slices and batches: each is searched once, and each candidate priced once."""
    monkeypatch.setattr(fleet_servers, "in_parallel", lambda every, do, workers: (_searched(one) for one in every))
    monkeypatch.setattr(fleet_servers, "price_candidate", _priced)


_FOUND: dict[object, tuple[Problem, SearchResult]] = {}


def _searched(asked: tuple[Query, Slice]) -> tuple[Problem, SearchResult]:
    """What the search finds, kept by all that makes these tests' searches differ."""
    query, slice_ = asked
    key = (query.model.name, slice_, slice_.chip.sources["reached"], query.work, query.auto, query.cuts)
    if key not in _FOUND:
        _FOUND[key] = search_slice(asked)
    return _FOUND[key]


_PLANS: dict[int, Plan] = {}


def _priced(candidate: Candidate, request: Query) -> Plan:
    """The candidate's plan; by the identity of its choice, which `_FOUND` keeps."""
    if id(candidate.choice) not in _PLANS:
        _PLANS[id(candidate.choice)] = price_candidate(candidate, request)
    return _PLANS[id(candidate.choice)]


def found(quota: dict[str, int], traffic: Traffic = TRAFFIC, **options: object) -> PlanFile:
    """A fleet for a small model with int8 weights and caches, from few batches."""
    few = {"prefill_batch": (1, 2), "decode_batch": (8, 32), "weights": "int8", "kv": "int8"}
    return fleet(MODEL, quota, traffic, **(few | options))  # type: ignore[arg-type]


def of(file: PlanFile) -> Fleet:
    """The fleet of a file."""
    assert file.fleet is not None
    return file.fleet


@pytest.fixture
def small() -> PlanFile:
    """A fleet from v5e slices of up to 8 chips."""
    return found({"v5e": 8})


def test_the_fleet_serves_the_traffic_within_the_quota(small: PlanFile) -> None:
    """Totals are the sums over members; both reach the traffic; chips stay within the quota."""
    fleet_ = of(small)
    for role, rate in (("prefill", fleet_.prefill_requests_per_s), ("decode", fleet_.decode_requests_per_s)):
        mine = [m for m in fleet_.members if m.role == role]
        assert rate == pytest.approx(sum(m.count * m.requests_per_s for m in mine))
        assert rate >= TRAFFIC.requests_per_s
    used = sum(m.count * m.chips for m in fleet_.members)
    assert [(q.chip, q.chips, q.used) for q in fleet_.quota] == [("v5e", 8, used)]
    assert used <= 8
    assert fleet_.proof.objective == fleet_.proof.bound == used
    assert fleet_.objective == "chips"


def test_rates_are_those_of_the_plans(small: PlanFile) -> None:
    """A prefill server does batch / step, a decode server batch / (output x step): layouts without cache copies."""
    for member in of(small).members:
        plan = small.plans[member.plan - 1]
        steps = 1 if member.role == "prefill" else TRAFFIC.output
        assert (plan.phase, plan.slice, plan.batch, plan.chips) == (
            member.role,
            member.slice,
            member.batch,
            member.chips,
        )
        assert member.requests_per_s == pytest.approx(plan.batch / (steps * plan.cost.step_s))
        assert member.limited_by == "step"


def test_decode_holds_a_request_to_its_end(small: PlanFile) -> None:
    """Prefill is planned at the prompt's tokens, decode at those of prompt and output together."""
    assert {(p.phase, p.context) for p in small.plans} == {("prefill", 2000), ("decode", 2304)}


def test_the_first_token_takes_no_less_than_its_parts(small: PlanFile) -> None:
    """Of every pair of servers: gathering a batch, its step, an even transfer, and two decode steps."""
    fleet_ = of(small)
    assert fleet_.request_cache_bytes == CACHE_BYTES
    for prefill, decode in itertools.product(*([p for p in small.plans if p.phase == role] for role in ROLES)):
        ends = parse_slice(prefill.slice), parse_slice(decode.slice)
        move_s = even_transfer_s(prefill.model, "int8", 2000, *ends, prefill.batch)
        gather_s = (prefill.batch - 1) / TRAFFIC.requests_per_s
        assert fleet_.transfer_s >= move_s * (1 - 1e-12)
        assert fleet_.ttft_s >= (gather_s + prefill.cost.step_s + move_s + 2 * decode.cost.step_s) * (1 - 1e-12)
    assert fleet_.step_s == max(p.cost.step_s for p in small.plans if p.phase == "decode")


def test_time_to_the_first_token_by_hand() -> None:
    """Two prompts at 12/s: 1/12 s until both are there, their step, their caches through 3.125e9 bytes/s, two steps."""
    slice_ = parse_slice("v5e:1x1")
    plans = plan_on(slice_, "prefill", 2), plan_on(slice_, "decode", 32)
    prefill, decode = (server_option(request(), slice_, plan) for plan in plans)
    move_s = 1e-4 + 2 * CACHE_BYTES / 3.125e9
    assert transfer_s(prefill, decode) == pytest.approx(move_s)
    expected_s = 1 / 12 + plans[0].cost.step_s + move_s + 2 * plans[1].cost.step_s
    assert ttft_s(prefill, decode, TRAFFIC.requests_per_s) == pytest.approx(expected_s)


def request(slice_: Slice | None = None) -> FleetQuery:
    """A query for servers of one chip."""
    dtypes = Dtypes(weights="int8", kv="int8")
    work = Workload(phase="decode", batches=(1,), context=2304, dtypes=dtypes)
    query = Query(model=load_model(MODEL), slices=(slice_ or parse_slice("v5e:1x1"),), work=work)
    return FleetQuery(query=query, quota={"v5e": 1}, traffic=TRAFFIC, prefill_batches=(1, 2))


def plan_on(slice_: Slice, role: str, batch: int) -> Plan:
    """The best plan of a slice, role and batch."""
    query = request(slice_).role_query(role, slice_).at(batch)
    problem, found = _searched((query, slice_))
    return _priced(Candidate(slice_, problem, found.choices[batch][0]), query)


def slow_network(dcn_bytes_per_s: float) -> Slice:
    """A v5e:1x1 with that DCN bandwidth."""
    slice_ = parse_slice("v5e:1x1")
    chip = msgspec.structs.replace(slice_.chip, dcn_bytes_per_s=dcn_bytes_per_s)
    return msgspec.structs.replace(slice_, chip=chip)


@pytest.mark.parametrize(("role", "batch"), [("prefill", 2), ("decode", 32)])
def test_a_slow_network_limits_a_server(role: str, batch: int) -> None:
    """Where sending or receiving caches takes longer than the steps, it decides the rate: bytes/s over bytes."""
    slice_ = slow_network(1e8)
    slow = server_option(request(), slice_, plan_on(slice_, role, batch))
    assert slow.limited_by == "network"
    assert slow.requests_per_s == pytest.approx(1e8 / CACHE_BYTES)
    assert (
        server_option(request(), parse_slice("v5e:1x1"), plan_on(parse_slice("v5e:1x1"), role, batch)).limited_by
        == "step"
    )


def test_the_transfer_takes_the_slower_side() -> None:
    """A batch of two prompts to a slice with a quarter of the bandwidth: its bytes through the slower cards."""
    fast, slow = parse_slice("v5e:1x1"), slow_network(3.125e9 / 4)
    prefill = server_option(request(), fast, plan_on(fast, "prefill", 2))
    decode = server_option(request(), slow, plan_on(slow, "decode", 32))
    assert transfer_s(prefill, decode) == pytest.approx(DCN_LATENCY_S + 2 * CACHE_BYTES / (3.125e9 / 4))


def test_copies_of_a_cache_stop_the_steps() -> None:
    """A layout that holds copies gathers them for each new request: lower rate, and a worst step that is longer."""
    slice_ = parse_slice("v5e:4x4")
    plan = plan_on(slice_, "decode", 1)
    offer = server_option(request(), slice_, plan)
    copies_s = offer.moves[1].copies_s
    assert copies_s > 0
    assert offer.step_s == pytest.approx(plan.cost.step_s + copies_s)
    assert offer.requests_per_s == pytest.approx(1 / (TRAFFIC.output * plan.cost.step_s + copies_s))


def test_without_dcn_bandwidth_a_chip_is_refused() -> None:
    """A chip whose file has no DCN bandwidth cannot be in a disaggregated fleet: the message names the field."""
    slice_ = parse_slice("v5e:1x1")
    bare = msgspec.structs.replace(slice_, chip=msgspec.structs.replace(slice_.chip, dcn_bytes_per_s=None))
    with pytest.raises(InputError, match="no dcn_bytes_per_s"):
        request(bare)


def test_every_plan_is_what_its_layouts_give(small: PlanFile, tmp_path: Path) -> None:
    """The file reads back equal, and each plan passes `verify`'s recomputation."""
    path = tmp_path / "fleet.json"
    path.write_bytes(encode(small))
    again = read_plan(path)
    assert again == small
    assert [check_plan_file(plan).status for plan in again.plans] == ["passed"] * len(again.plans)


@pytest.mark.slow
def test_verify_accepts_the_plans_of_a_fleet(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """`verify --pick` runs each plan on host devices: numerics and collectives hold."""
    path = tmp_path / "fleet.json"
    assert meshwright.main([*ARGUMENTS, "-o", str(path)]) == 0
    for number in range(1, 1 + len(read_plan(path).plans)):
        assert meshwright.main(["verify", str(path), "--pick", str(number), "--level", "numerics,collectives"]) == 0
    assert "does what was promised" in capsys.readouterr().out


def test_prices_by_hand() -> None:
    """Dollars per hour are chips x price; per million output tokens: those over what the traffic makes in an hour."""
    fleet_ = of(found({"v5e": 8, "v6e": 4}, prices=PRICES))
    hourly = sum(m.count * m.chips * PRICES[m.chip] for m in fleet_.members)
    assert fleet_.objective == "dollars per hour"
    assert fleet_.cost_per_hour == pytest.approx(hourly)
    assert fleet_.proof.objective == pytest.approx(hourly)
    assert fleet_.cost_per_million_output_tokens == pytest.approx(hourly / (12 * 300 * 3600) * 1e6)
    dear = of(found({"v5e": 8, "v6e": 4}, prices={"v5e": 100.0, "v6e": 1.0}))
    assert {m.chip for m in dear.members} == {"v6e"}


def test_the_order_of_the_quota_does_not_matter() -> None:
    """Two kinds of chips either way round give the same file, but for the seconds that it took."""
    first, second = (_timeless(found(dict(pairs), prices=PRICES)) for pairs in _both_ways({"v5e": 8, "v6e": 4}))
    assert first == second


def _both_ways(quota: dict[str, int]) -> list[list[tuple[str, int]]]:
    return [list(quota.items()), list(reversed(quota.items()))]


def _timeless(file: PlanFile) -> PlanFile:
    search = msgspec.structs.replace(file.search, wall_s=0.0, evaluations_per_s=0.0)
    proof = msgspec.structs.replace(of(file).proof, solver_s=0.0)
    return msgspec.structs.replace(file, search=search, fleet=msgspec.structs.replace(of(file), proof=proof))


def _cost(quota: dict[str, int], **options: object) -> float:
    """The objective; infinite where there is no fleet."""
    try:
        return of(found(quota, prices=PRICES, **options)).proof.objective
    except NoFleet:
        return float("inf")


def test_a_larger_quota_never_makes_it_worse() -> None:
    """From one chip to all, of one kind and of two, the cost only falls; the smallest quota is too small."""
    grown = [{"v5e": 1}, {"v5e": 4}, {"v5e": 8}, {"v5e": 8, "v6e": 1}, {"v5e": 8, "v6e": 4}]
    costs = [_cost(quota) for quota in grown]
    assert costs[0] == float("inf")
    assert all(a >= b for a, b in itertools.pairwise(costs))
    assert costs[0] > costs[2] > costs[-1]


def test_a_looser_target_never_makes_it_worse() -> None:
    """Step, first token and utilisation: each looser, the cost only falls, and the tightest of them costs more."""
    quota = {"v5e": 8, "v6e": 4}
    for targets in (
        [Targets(max_step_s=s) for s in (0.002, 0.004, 0.01)],
        [Targets(max_ttft_s=s) for s in (0.02, 0.06, 0.15)],
    ):
        costs = [_cost(quota, targets=one) for one in (*targets, Targets())]
        assert all(a >= b for a, b in itertools.pairwise(costs))
        assert costs[0] > costs[-1]
    costs = [_cost(quota, utilisation=share) for share in (0.3, 1.0)]
    assert all(a >= b for a, b in itertools.pairwise(costs))
    assert costs[0] > costs[-1]


def test_skipping_dear_slices_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """At little traffic large slices are not searched; with all of them searched the fleet is the same."""
    little = Traffic(requests_per_s=5.0, input=2000, output=300)
    short = found({"v5e": 16}, little)
    assert short.notes[0].startswith("slices not searched: 2, each of which alone costs")
    monkeypatch.setattr(fleet_servers, "least_cost_so_far", lambda asked, offers, dearest: None)
    whole = found({"v5e": 16}, little)
    assert whole.search.evaluations > short.search.evaluations
    assert not any("not searched" in note for note in whole.notes)
    assert _timeless(whole).fleet == _timeless(short).fleet
    assert whole.plans == short.plans


def test_targets_hold_in_the_fleet() -> None:
    """What is reported is within the targets that were given, at the utilisation that was given."""
    targets = Targets(max_step_s=0.006, max_ttft_s=0.2)
    file = found({"v5e": 8, "v6e": 4}, targets=targets, utilisation=0.8)
    fleet_ = of(file)
    assert fleet_.step_s <= 0.006
    assert fleet_.ttft_s <= 0.2
    assert fleet_.prefill_requests_per_s >= 12 / 0.8
    assert fleet_.decode_requests_per_s >= 12 / 0.8
    assert file.targets == ("a step of at most 6 ms", "a first token after at most 200 ms")


def test_batches_are_powers_of_two_and_the_largest() -> None:
    """Up to the largest batch that fits; where none does, one sequence is tried so that the search can say why."""
    slice_ = parse_slice("v5e:1x1")
    query = request(slice_).role_query("decode", slice_)
    assert query.auto
    assert problem_of(query, slice_).work.batches == (1, 2, 4, 8, 16, 32, 58)
    huge = replace(query, model=load_model("llama-3.1-70b"))
    assert problem_of(huge, slice_).work.batches == (1,)


def test_by_default_decode_may_take_the_largest_batch_that_fits() -> None:
    """On one chip the largest batch is no power of two; a fleet that needs its rate uses it."""
    file = found({"v5e": 3}, Traffic(requests_per_s=8.0, input=2000, output=300), decode_batch=None, prefill_batch=(1,))
    assert [(m.role, m.count, m.batch) for m in of(file).members] == [("prefill", 2, 1), ("decode", 1, 58)]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"quota": {"v5e": 1}}, "v5e=1 is too small for 12.00 requests/s; .* prefill is .*/s short; decode is"),
        (
            {"targets": Targets(max_step_s=1e-4)},
            "meets a step of at most 0.1 ms: the shortest decode",
        ),
        (
            {"targets": Targets(max_ttft_s=1e-3)},
            "meets a first token after at most 1 ms: the shortest prefill",
        ),
        ({"targets": Targets(max_ttft_s=0.028)}, "no two slices .* at most 28 ms: the least time .* v5e:2x4"),
        ({"decode_batch": (100_000,)}, "fits any slice of the quota v5e=8 as a decode server: .* v5e:2x4 at batch"),
        ({"quota": {"v5e": 2}, "utilisation": 0.5}, "for 24.00 requests/s; .* 12 requests/s may take 50% of the rates"),
    ],
)
def test_no_fleet_says_why(options: dict[str, object], why: str) -> None:
    """Each way to have no fleet has its own reason, with numbers."""
    given = {"quota": {"v5e": 8}} | options
    with pytest.raises(NoFleet, match=why):
        found(**given)  # type: ignore[arg-type]


def test_where_nothing_fits_a_larger_slice_is_named() -> None:
    """Llama-3.1-70B in int8 does not fit on 2x2: the quota from which it fits is named, for each kind of chip."""
    with pytest.raises(NoFleet, match=r"it fits from v5e=8 \(v5e:2x4\) or v6e=4 \(v6e:2x2\) on"):
        fleet("llama-3.1-70b", {"v5e": 4, "v6e": 1}, TRAFFIC, weights="int8", kv="int8", decode_batch=(1,))


def _interrupting(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let the search be interrupted after so many slices and roles."""
    counter = itertools.count()

    def stop(
        every: Sequence[tuple[Query, Slice]], do: object, workers: int | None
    ) -> Iterator[tuple[Problem, SearchResult]]:
        for one in every:
            if next(counter) >= after:
                raise KeyboardInterrupt
            yield _searched(one)

    monkeypatch.setattr(fleet_servers, "in_parallel", stop)


def test_an_interrupt_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """With both roles searched on one slice there is a fleet of such slices, marked as interrupted."""
    _interrupting(monkeypatch, 2)
    file = found({"v5e": 8})
    assert {m.slice for m in of(file).members} == {"v5e:1x1"}
    assert of(file).proof.interrupted
    assert "interrupted" in file.notes[0]
    assert file.search.proved_optimal == "interrupted"


def test_an_interrupt_before_there_is_a_fleet_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one role searched only there is nothing to show."""
    _interrupting(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        found({"v5e": 8})


@pytest.mark.parametrize(
    ("quota", "traffic", "options", "why"),
    [
        ({}, TRAFFIC, {}, "no quota given"),
        ({"v5e": 0}, TRAFFIC, {}, "quota v5e=0: expected a whole number"),
        ({"v5e": 8.5}, TRAFFIC, {}, "quota v5e=8.5: expected a whole number"),
        ({"v9": 4}, TRAFFIC, {}, "quota v9=4: no such chip; closest"),
        ({"v5p": 2}, TRAFFIC, {}, "quota v5p=2: too few for any slice; the smallest of v5p has 4 chips"),
        ({"v5e": 8}, {"requests_per_s": 1, "input": 2}, {}, "output"),
        ({"v5e": 8}, {"requests_per_s": -1, "input": 2, "output": 3}, {}, "requests_per_s=-1: expected"),
        ({"v5e": 8}, {"requests_per_s": 1, "input": 0, "output": 3}, {}, "traffic input 0"),
        ({"v5e": 8}, {"requests_per_s": 1, "input": 9e7, "output": 9e7}, {}, "input"),
        ({"v5e": 8}, TRAFFIC, {"utilisation": 0.0}, "utilisation 0"),
        ({"v5e": 8}, TRAFFIC, {"utilisation": float("nan")}, "utilisation nan"),
        ({"v5e": 8}, TRAFFIC, {"solver_seconds": 0}, "solver_seconds 0"),
        ({"v5e": 8}, TRAFFIC, {"prices": {"v6e": 1.0}}, "no price for v5e"),
        ({"v5e": 8}, TRAFFIC, {"prices": {"v5e": -1.0}}, "expected a price"),
        ({"v5e": 8}, TRAFFIC, {"targets": Targets(max_chips=4)}, "give chips as a quota"),
        ({"v5e": 8}, TRAFFIC, {"constants": "nonesuch"}, "constants 'nonesuch' are not known"),
        ({"v5e": 8}, TRAFFIC, {"kv": "int3"}, "dtype 'int3'"),
        ({"v5e": 8}, TRAFFIC, {"prefill_batch": (0,)}, "batch 0"),
    ],
)
def test_bad_input_is_refused(quota: dict[str, int], traffic: object, options: dict[str, object], why: str) -> None:
    """One line that names the value and what was expected."""
    with pytest.raises(InputError, match=why) as error:
        found(quota, traffic, **options)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("texts", [["v5e"], ["v5e="], ["=4"], ["v5e=4,v5e=8"], ["v5e=4", "V5E=8"], ["v5e=4.5"], [""]])
def test_bad_quotas_are_refused(texts: Sequence[str]) -> None:
    """What is no `chip=number`, or says a chip twice."""
    with pytest.raises(InputError, match="--quota"):
        commandline.quota(texts)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "input=1,output=2",
        "requests_per_s=1,input=2,output=3,x=4",
        "requests_per_s=1,input=2,input=2,output=3",
        "requests_per_s=a,input=2,output=3",
        "requests_per_s=1,input=2.5,output=3",
    ],
)
def test_bad_traffic_is_refused(text: str) -> None:
    """What is missing, unknown, given twice, or no number."""
    with pytest.raises(InputError, match="--traffic"):
        commandline.traffic([text])


def test_slices_of_a_quota() -> None:
    """Every legal slice with no more chips than the quota of its kind, small ones first."""
    names = [s.name for s in quota_slices({"v6e": 4, "v5e": 8}, None, "chip")]
    assert names == ["v5e:1x1", "v6e:1x1", "v5e:2x2", "v6e:2x2", "v5e:2x4"]


def test_a_chip_file_is_in_the_quota(tmp_path: Path) -> None:
    """A chip of one's own, with other DCN bandwidth, is a kind of the quota like the others."""
    from mesh.chips import CHIPS

    text = (CHIPS / "v5e.toml").read_text("utf-8").replace('name = "v5e"', 'name = "Mine"')
    (tmp_path / "mine.toml").write_text(text.replace("dcn_bytes_per_s = 3.125e9", "dcn_bytes_per_s = 1e9"), "utf-8")
    file = found({"Mine": 8}, chip_file=tmp_path / "mine.toml", prices={"Mine": 2.0})
    used = sum(m.count * m.chips for m in of(file).members)
    assert [(q.chip, q.chips, q.used) for q in of(file).quota] == [("mine", 8, used)]
    assert of(file).cost_per_hour == 2.0 * used
    assert {m.chip for m in of(file).members} == {"Mine"}
    assert {m.dcn_bytes_per_s / m.chips for m in of(file).members} == {1e9}
    assert [m.count for m in of(file).members] == [m.count for m in of(found({"v5e": 8})).members]


def test_the_report_has_the_figures(small: PlanFile) -> None:
    """Servers with counts and rates, chips of the quota, seconds, the objective and its proof."""
    text = render(report(small), "wide")
    fleet_ = of(small)
    used = fleet_.quota[0].used
    assert f"chips: {used} ({used} of 8 v5e)" in text
    assert f"{used} chips: proved least of all fleets of these servers" in text
    assert "fewest chips" in text.splitlines()[0]
    assert "KV cache of a prompt: 131.1 MB" in text
    for member in fleet_.members:
        assert any(member.slice in line and member.role in line for line in text.splitlines())
    assert "## Layouts" in render(report(small), "markdown")


def test_the_report_of_an_unproved_fleet_says_so(small: PlanFile) -> None:
    """Bound and gap, and what ended the solver."""
    proof = msgspec.structs.replace(of(small).proof, status="feasible", bound=4.0, gap=0.2, seconds=2.0)
    late = msgspec.structs.replace(small, fleet=msgspec.structs.replace(of(small), proof=proof))
    text = render(report(late), "wide")
    assert (
        "not proved least: cp-sat was ended by --solver-seconds 2; no fleet of these servers takes less than 4" in text
    )
    assert "(gap 20.00%)" in text
    stopped = msgspec.structs.replace(proof, interrupted=True)
    text = render(
        report(msgspec.structs.replace(late, fleet=msgspec.structs.replace(of(small), proof=stopped))), "table"
    )
    assert "cp-sat was interrupted" in text


ARGUMENTS = (
    "fleet", MODEL, "--quota", "v5e=8", "--traffic", "requests_per_s=12,input=2000,output=300", "--weights", "int8",
    "--kv", "int8", "--prefill-batch", "1,2", "--decode-batch", "8,32",
)  # fmt: skip


def test_the_command_prints_and_writes_what_the_function_finds(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, small: PlanFile
) -> None:
    """JSON on stdout and in the file are one, and are what `fleet` returns, but for the seconds."""
    path = tmp_path / "fleet.json"
    assert meshwright.main([*ARGUMENTS, "--format", "json", "-o", str(path)]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out == path.read_text("utf-8")
    assert _timeless(read_plan(path)) == _timeless(small)


def test_the_command_exits_1_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """No fleet: the reason in one line on stderr; as JSON a file with no plans."""
    more = ["--max-step-ms", "0.1"]
    assert meshwright.main([*ARGUMENTS, *more]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("meshwright: no slice of the quota meets a step of at most 0.1 ms")
    assert said.err.count("\n") == 1
    assert meshwright.main([*ARGUMENTS, *more, "--format", "json"]) == 1
    value = json.loads(capsys.readouterr().out)
    assert value["plans"] == []
    assert "a step of at most 0.1 ms" in value["nothing_fits"]["why"]


def test_the_command_exits_130_with_the_best_so_far(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Interrupted in the search: the fleet of what was found is printed and written."""
    _interrupting(monkeypatch, 2)
    path = tmp_path / "fleet.json"
    assert meshwright.main([*ARGUMENTS, "-o", str(path)]) == 130
    assert "interrupted: not every slice of the quota was searched" in capsys.readouterr().out
    assert of(read_plan(path)).proof.interrupted
    _interrupting(monkeypatch, 0)
    assert meshwright.main(ARGUMENTS) == 130
    assert capsys.readouterr().err == "meshwright: interrupted\n"


@pytest.mark.slow
def test_hash_seed_and_number_of_processes_do_not_matter() -> None:
    """The command's JSON is the same with one process and with two, at two hash seeds, but for the seconds."""
    files = []
    for seed, workers in (("0", "1"), ("1", "2")):
        command = [sys.executable, "-m", "meshwright", *ARGUMENTS, "--workers", workers, "--format", "json"]
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(meshwright.__file__).parent)}
        done = subprocess.run(command, capture_output=True, env=environment, check=True)
        files.append(_timeless(msgspec.json.decode(done.stdout, type=PlanFile)))
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--solver-seconds", "0"], "--solver-seconds 0"),
        (["--utilisation", "x"], "--utilisation 'x'"),
        (["--max-ttft-ms", "-1"], "--max-ttft-ms -1"),
        (["--price-per-chip-hour", "v5e=a"], "--price-per-chip-hour"),
        (["--quota", "v5e=4"], "a second quota of v5e"),
        (["--format", "yaml"], "--format 'yaml'"),
    ],
)
def test_the_command_exits_2_on_bad_options(capsys: pytest.CaptureFixture[str], more: list[str], why: str) -> None:
    """One line on stderr, nothing on stdout."""
    assert meshwright.main([*ARGUMENTS, *more]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert why in said.err
    assert said.err.count("\n") == 1


def test_offers_have_names_of_their_own() -> None:
    """Slice, role and batch name an offer."""
    slice_ = parse_slice("v5e:1x1")
    offer: ServerOption = server_option(request(), slice_, plan_on(slice_, "decode", 32))
    assert offer.name == "v5e:1x1 decode batch 32"
