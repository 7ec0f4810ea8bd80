"""Ways to serve: what fits one slice, numbers of slices, targets, costs, and what the command prints."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
from helpers.levels import check_plan_file
from helpers.serving import serve_query

from mesh.errors import InputError
from mesh.slices import parse_slice
from planner.best.nothing import NothingFits
from planner.best.sweep import sweep
from planner.plan.file_serving import MODES, ServingEntry
from planner.plan.plan import Plan
from planner.plan.planfile import PlanFile, encode, read_plan
from planner.query.targets import Targets
from planner.serve.query import ServeQuery, Way
from planner.serve.reshard import box, weight_names
from planner.serve.serve import make_serving
from planner.serve.ways import Priced, front, ways_on_one
from strategies.models.workload import dtype_bytes

SLICES = ("v5e:2x2", "v5e:2x4")


def request_of(slices: tuple[str, ...] = SLICES, model: str = "llama-3.1-8b", **options: object) -> ServeQuery:
    """Prompts of 1024 tokens, answers of 128, everything in int8."""
    return serve_query(slices, model, **({"top": 8} | options))  # type: ignore[arg-type]


def asking(request: ServeQuery, **options: object) -> ServeQuery:
    """The same with other fields of its query."""
    return replace(request, query=replace(request.query, **options))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def file() -> PlanFile:
    """Ways to serve on two slices."""
    return make_serving(request_of(prices={"v5e": 1.2}))


def entries(file: PlanFile) -> tuple[ServingEntry, ...]:
    """The ways of a plan file."""
    assert file.serving is not None
    return file.serving.entries


def plans_of(file: PlanFile, entry: ServingEntry) -> tuple[Plan, Plan]:
    """The prefill and the decode plan of a way."""
    return file.plans[entry.prefill - 1], file.plans[entry.decode - 1]


def stored_bytes(plan: Plan, name: str) -> float:
    """Bytes of a weight on one device, from its shape and the sizes of the axes that cut it."""
    spec, sizes = plan.specs[name], plan.mesh.sizes
    layers = next(a.layers for a in plan.layouts if a.component == name.split("/")[0])
    ways = prod(sizes[axis] for axes in spec.axes for axis in axes)
    return layers * prod(spec.shape) * dtype_bytes(spec.dtype) / ways


def test_every_mode_has_its_best_way(file: PlanFile) -> None:
    """All three modes are there, best per chip first, and every plan is used by a way."""
    found = entries(file)
    assert {entry.mode for entry in found} == set(MODES)
    speeds = [entry.tokens_per_s_per_chip for entry in found]
    assert speeds == sorted(speeds, reverse=True)
    assert {n for e in found for n in (e.prefill, e.decode)} == set(range(1, len(file.plans) + 1))
    for entry in found:
        prefill, decode = plans_of(file, entry)
        assert (prefill.phase, prefill.context, decode.phase, decode.context) == ("prefill", 1024, "decode", 1280)


def test_figures_of_a_way_agree(file: PlanFile) -> None:
    """Tokens/s = requests/s x output; per chip and cost follow; chips are those of its slices."""
    for entry in entries(file):
        prefill, decode = plans_of(file, entry)
        apart = entry.prefill_slices * prefill.chips + entry.decode_slices * decode.chips
        assert entry.chips == entry.replicas * (decode.chips if entry.transfer is None else apart)
        assert entry.tokens_per_s == pytest.approx(entry.pace.requests_per_s * 128)
        assert entry.tokens_per_s_per_chip == pytest.approx(entry.tokens_per_s / entry.chips)
        dollars = entry.chips * 1.2 / 3600 / entry.tokens_per_s * 1e6
        assert entry.dollars_per_million_tokens == pytest.approx(dollars)


def test_one_slice_holds_both_plans(file: PlanFile) -> None:
    """Counted again from the specs: weights once where both cut them alike, else twice; caches; the larger moment."""
    for entry in (e for e in entries(file) if e.together is not None):
        prefill, decode = plans_of(file, entry)
        held, slice_ = entry.together, parse_slice(decode.slice)
        assert held is not None
        assert prefill.slice == decode.slice
        both = {
            (name, str(sorted(box(plan.specs[name], plan, slice_).dims.items()))): stored_bytes(plan, name)
            for plan in (decode, prefill)
            for name in weight_names(plan)
            if not name.endswith("/norm")
        }
        assert held.weights in ("shared", "copies")
        mine = [name for name in weight_names(decode) if not name.endswith("/norm")]
        norms = decode.memory.weights_bytes - sum(stored_bytes(decode, name) for name in mine)
        weights = sum(both.values()) + norms
        assert held.weights_bytes == pytest.approx(weights)
        at_once = entry.mode == "batched" and prefill.batch == decode.batch
        kept = 0 if at_once else decode.memory.kv_bytes
        prefilling = weights + kept + prefill.memory.kv_bytes + prefill.memory.activation_bytes
        decoding = weights + decode.memory.kv_bytes + decode.memory.activation_bytes
        inserting = weights + decode.memory.kv_bytes + prefill.memory.kv_bytes
        assert held.total_bytes == pytest.approx(max(prefilling, decoding, inserting))
        assert held.total_bytes <= decode.memory.usable_bytes


def test_plans_of_ways_verify(file: PlanFile, tmp_path: Path) -> None:
    """Each plan of a written serving file is what its own layouts give."""
    path = tmp_path / "serve.json"
    path.write_bytes(encode(file))
    again = read_plan(path)
    assert again == file
    for plan in again.plans:
        assert check_plan_file(plan).findings == ()


def ways(request: ServeQuery) -> list[Way]:
    """All pairs of the best plans of one slice, both modes."""
    priced, slice_ = Priced(request), request.query.slices[0]
    pairs = itertools.product(*(sweep(request.phase_query(phase)).bests for phase in ("prefill", "decode")))
    return [w for p, d in pairs for w in ways_on_one(request, slice_, priced.plan(p), priced.plan(d))]


def test_disaggregated_tokens_never_wait_for_prefills(file: PlanFile) -> None:
    """With the same plans on slices of the same shape, tokens come at least as fast as interleaved."""
    apart = {(e.prefill, e.decode): e.pace for e in entries(file) if e.mode == "disaggregated"}
    request = request_of(("v5e:2x2",))
    one = {(w.prefill.batch, w.decode.batch): w.pace for w in ways(request) if w.mode == "interleaved"}
    assert apart
    for (prefill, decode), pace in apart.items():
        key = (file.plans[prefill - 1].batch, file.plans[decode - 1].batch)
        if file.plans[decode - 1].slice == "v5e:2x2" and key in one:
            assert pace.per_token_s <= one[key].per_token_s
            assert pace.worst_per_token_s <= one[key].worst_per_token_s


def test_weights_are_kept_twice_where_there_is_room_and_moved_where_there_is_not() -> None:
    """64 slots of int8 leave room for copies, which cost no time; 464 of bf16 leave none: the switch is priced."""
    roomy = [w.together for w in ways(request_of(("v5e:2x4",))) if w.together]
    assert roomy
    assert all(held.switch.seconds == 0 for held in roomy)
    tight = request_of(("v5e:2x4",), batches=(464,), prefill_batches=(2,), modes=("interleaved",), dtype="bf16")
    found = entries(make_serving(tight))[0]
    held = found.together
    assert held is not None
    assert (held.weights, held.copied_bytes) == ("resharded", 0)
    assert held.total_bytes <= held.usable_bytes
    prefill, decode = plans_of(make_serving(tight), found)
    stops = decode.batch / prefill.batch / 128 * (prefill.cost.step_s + held.insert.seconds + held.switch.seconds)
    assert held.switch.seconds > 0.01
    assert found.pace.per_token_s == pytest.approx(decode.cost.step_s + stops)


@pytest.mark.parametrize(
    "targets",
    [
        pytest.param((Targets(max_step_s=0.005), Targets(max_step_s=0.05)), marks=pytest.mark.slow),
        pytest.param((Targets(max_ttft_s=0.1), Targets(max_ttft_s=1.0)), marks=pytest.mark.slow),
        (Targets(max_chips=8), Targets(max_chips=24), Targets()),
        (Targets(min_tokens_per_s=50000), Targets(min_tokens_per_s=5000)),
    ],
)
def test_looser_targets_never_do_worse(targets: tuple[Targets, ...]) -> None:
    """Each looser target gives at least the throughput per chip of the tighter one, whose ways all meet it."""
    before = 0.0
    for target in targets:
        request = request_of(targets=target, batches=(8, 64), prefill_batches=(1,))
        try:
            found = entries(make_serving(request))
        except NothingFits:
            assert before == 0.0
            continue
        for entry in found:
            assert target.max_step_s is None or entry.pace.worst_per_token_s <= target.max_step_s
            assert target.max_ttft_s is None or entry.pace.worst_ttft_s <= target.max_ttft_s
            assert target.max_chips is None or entry.chips <= target.max_chips
            assert entry.tokens_per_s >= (target.min_tokens_per_s or 0) * (1 - 1e-9)
        assert found[0].tokens_per_s_per_chip >= before * (1 - 1e-12)
        before = found[0].tokens_per_s_per_chip
    assert before > 0


def test_targets_are_of_what_they_name() -> None:
    """A time per token that only prefills between steps exceed leaves batched serving, whose first token comes late."""
    found = entries(make_serving(request_of(targets=Targets(max_step_s=0.008))))
    assert {entry.mode for entry in found} == {"batched", "disaggregated"}
    assert max(entry.pace.worst_ttft_s for entry in found) > 0.008
    late = entries(make_serving(request_of(targets=Targets(max_ttft_s=0.2))))
    assert {entry.mode for entry in late} == {"interleaved", "disaggregated"}


def test_order_of_slices_changes_nothing() -> None:
    """The same ways come out whichever slice is named first."""
    request = request_of(batches=(64,), prefill_batches=(1,))
    one, other = (make_serving(asking(request, slices=s)) for s in (request.query.slices, request.query.slices[::-1]))
    assert (one.serving, one.plans) == (other.serving, other.plans)


def test_objectives_rank_by_what_they_say() -> None:
    """Latency ranks by seconds of a request, cost by dollars per token: dearer chips lose."""
    request = request_of(("v5e:2x2", "v6e:2x2"), batches=(8, 64), prefill_batches=(1,), top=6)
    fast = make_serving(asking(request, objective="latency"))
    seconds = [e.pace.request_s(128) for e in entries(fast)]
    assert seconds == sorted(seconds)
    for prices, cheap in (({"v5e": 1.0, "v6e": 50.0}, "v5e"), ({"v5e": 50.0, "v6e": 1.0}, "v6e")):
        found = make_serving(replace(asking(request, objective="cost", prices=prices), modes=("interleaved",)))
        dollars = [e.dollars_per_million_tokens or 0.0 for e in entries(found)]
        assert dollars == sorted(dollars)
        assert plans_of(found, entries(found)[0])[1].slice.startswith(cheap)


def test_front_keeps_every_best() -> None:
    """What leaves the front is beaten in seconds, speed per chip and chips by one that stays."""
    bests = sweep(request_of(("v5e:2x2", "v5e:2x4", "v5e:4x4"), prefill_batches=(1, 4)).phase_query("prefill")).bests
    kept = front(bests)
    assert len(kept) < len(bests)
    for one in (c for c in bests if c not in kept):
        assert any(
            k.choice.step_s <= one.choice.step_s
            and k.tokens_per_s_per_chip >= one.tokens_per_s_per_chip
            and k.slice_.chips <= one.slice_.chips
            for k in kept
        )


def test_what_nothing_meets_says_how_close_it_comes() -> None:
    """Targets that nothing meets: which ones, and what the best way has instead."""
    request = request_of(("v5e:2x2",), targets=Targets(max_step_s=1e-4), prefill_batches=(1,), batches=(8,))
    with pytest.raises(
        NothingFits, match=r"interleaved: none of \d+ ways meets a step of at most 0.1 ms; the best has at wor"
    ):
        make_serving(request)


def test_model_that_fits_no_slice_says_what_it_needs() -> None:
    """A model that is too large is told as `plan` tells it."""
    with pytest.raises(NothingFits, match="does not fit on v5e:2x2"):
        make_serving(request_of(("v5e:2x2",), model="llama-3.1-70b", batches=(8,), prefill_batches=(1,)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modes": ("eager",)}, "serving 'eager' is not known; expected batched, interleaved, disaggregated or all"),
        ({"modes": ()}, "no way to serve given"),
        ({"objective": "cost"}, "objective 'cost' needs prices"),
        ({"objective": "speed"}, "objective 'speed' is not known"),
        ({"prices": {"v6e": 1.0}}, "no price for v5e"),
    ],
)
def test_contradictions_are_bad_input(options: dict[str, object], message: str) -> None:
    """What cannot be meant is refused with one line that says what would work."""
    with pytest.raises(InputError, match=message):
        request_of(**options)
