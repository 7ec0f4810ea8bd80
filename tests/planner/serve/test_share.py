"""Two plans on one slice: prefill layouts that share the decode's weights, leaner decodes, pairs that cp-sat proves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.levels import check_plan_file
from helpers.serving import serve_query

import planner.serve.serve
from planner.best.nothing import NothingFits
from planner.best.sweep import sweep
from planner.plan.file_serving import ServingEntry
from planner.plan.planfile import PlanFile
from planner.query.targets import Targets
from planner.serve.query import ServeQuery
from planner.serve.serve import make_serving
from planner.serve.share import by_letters, leaner_decodes, letters
from planner.serve.ways import Priced


def request_of(slices: tuple[str, ...], **options: object) -> ServeQuery:
    """llama-3.1-8b with prompts of 1024 tokens and answers of 128, interleaved, everything in int8."""
    return serve_query(slices, **({"modes": ("interleaved",)} | options))  # type: ignore[arg-type]


def entries(file: PlanFile) -> tuple[ServingEntry, ...]:
    """The ways of a plan file."""
    assert file.serving is not None
    return file.serving.entries


def test_decodes_with_equal_letters_are_searched_once() -> None:
    """Decode layouts are grouped by which dims of the weights each physical axis cuts, and none is lost."""
    bests = sweep(request_of(("v5e:2x4",), batches=(1, 8, 64, 128)).phase_query("decode")).bests
    groups = by_letters(bests)
    assert sorted(c.choice.batch for group in groups for c in group) == [1, 8, 64, 128]
    for group in groups:
        assert all(letters(one) == letters(group[0]) for one in group)
    firsts = [letters(group[0]) for group in groups]
    assert all(a != b for i, a in enumerate(firsts) for b in firsts[:i])


@pytest.mark.parametrize("batch", [448, 480])
def test_idle_part_of_an_axis_does_not_keep_prefills_out(batch: int) -> None:
    """Batches whose fastest decode leaves an axis partly idle still find a prefill that fits beside it."""
    request = request_of(("v5e:2x4",), batches=(batch,), prefill_batches=(2,), dtype="bf16")
    found = entries(make_serving(request))[0]
    assert found.together is not None
    assert found.together.total_bytes <= found.together.usable_bytes


def test_leaner_decodes_leave_room_for_a_prefill() -> None:
    """Decode layouts that are searched again leave what the least prefill works with."""
    request = request_of(("v5e:2x2",))
    priced = Priced(request)
    prefills = sweep(request.phase_query("prefill")).bests
    room = min(p.memory.kv_bytes + p.memory.activation_bytes for p in map(priced.plan, prefills))
    found = leaner_decodes(request, (8, 64), prefills, priced)
    assert [c.choice.batch for c in found] == [8, 64]
    for candidate in found:
        plan = priced.plan(candidate)
        assert plan.memory.total_bytes + room <= plan.memory.usable_bytes
    assert leaner_decodes(request, (), prefills, priced) == leaner_decodes(request, (8,), (), priced) == []


def test_solver_finds_the_pair_that_shares_its_weights_best() -> None:
    """Where HBM has no room for copies, cp-sat finds layouts that share all weights, faster ones; both verify."""
    request = request_of(("v5e:2x4",), batches=(256,), prefill_batches=(4,), dtype="bf16")
    before = entries(make_serving(request))[0]
    file = make_serving(replace(request, query=replace(request.query, solver="cp-sat")))
    after = entries(file)[0]
    assert after.together is not None
    assert after.together.proof is not None
    assert (after.together.weights, after.together.proof.status) == ("shared", "optimal")
    assert after.together.switch.seconds == after.together.copied_bytes == 0
    assert after.pace.requests_per_s > 1.05 * before.pace.requests_per_s
    assert all(check_plan_file(plan).findings == () for plan in file.plans)


@pytest.mark.parametrize(("when", "left"), [("prefill: searching", False), ("solving", True)])
def test_interrupt_keeps_what_was_found(when: str, left: bool) -> None:
    """An interrupt while pairs are solved leaves the ways found before; one in the first search leaves nothing."""

    def interrupt(text: str) -> None:
        if text.startswith(when):
            raise KeyboardInterrupt

    request = request_of(("v5e:2x4",), batches=(256,), prefill_batches=(4,), solver="cp-sat", dtype="bf16")
    if not left:
        with pytest.raises(KeyboardInterrupt):
            make_serving(request, interrupt)
        return
    file = make_serving(request, interrupt)
    assert file.search.proved_optimal == "interrupted"
    assert entries(file)


def test_an_interrupt_before_a_target_is_met_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs that were not solved may meet it: no claim that none does, as there is without an interrupt."""
    request = request_of(("v5e:2x4",), batches=(256,), prefill_batches=(4,), targets=Targets(max_ttft_s=1e-9))
    with pytest.raises(NothingFits, match="meets a first token after at most"):
        make_serving(request)
    monkeypatch.setattr(planner.serve.serve, "_proved", lambda *_: True)
    with pytest.raises(KeyboardInterrupt):
        make_serving(request)
