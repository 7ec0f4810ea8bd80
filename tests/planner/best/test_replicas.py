"""Plans on several slices: the batch is cut, throughput is of all, and a file that says otherwise is caught."""

from __future__ import annotations

import msgspec
import pytest
from helpers.levels import check_plan_file

import meshwright
from mesh.errors import InputError
from planner.best.replicas import batches_per_slice, dcn_token_bytes_per_s, replicated
from planner.plan.planfile import PlanFile

SMALL = {"weights": "int8", "kv": "int8", "context": 1024, "top": 1}


@pytest.fixture(scope="module")
def one() -> PlanFile:
    """A plan of one slice at batch 16."""
    return meshwright.plan("llama-3.1-8b", "v5e:2x2", batch=(16,), **SMALL)


@pytest.fixture(scope="module")
def three() -> PlanFile:
    """A plan of three slices at batch 48."""
    return meshwright.plan("llama-3.1-8b", "v5e:2x2", batch=(48,), num_slices=3, **SMALL)


def test_each_slice_runs_its_part_of_the_batch(one: PlanFile, three: PlanFile) -> None:
    """Three slices at batch 48 run what one does at 16: the same step and memory, three times the tokens."""
    a, b = one.plans[0], three.plans[0]
    assert b.throughput.tokens_per_s == pytest.approx(3 * a.throughput.tokens_per_s)
    same = msgspec.structs.replace(b, num_slices=1, throughput=a.throughput)
    assert (b.num_slices, b.batch, b.chips, same) == (3, 16, 4, a)
    assert replicated(one, 3).plans == three.plans


def test_token_ids_cross_dcn(three: PlanFile) -> None:
    """A step takes one id of 4 bytes for each sequence and gives one; the note says so."""
    plan = three.plans[0]
    assert dcn_token_bytes_per_s(plan) == pytest.approx(2 * 4 * 48 / plan.cost.step_s)
    assert three.notes[-1].startswith("3 slices, data parallel: each runs its part of the batch")
    assert three.notes[-1].endswith("of 37.5 GB/s that their hosts have")  # 12 chips x 3.125


def test_integrity_counts_all_slices(three: PlanFile) -> None:
    """What `verify` computes again holds for several slices; another number of them is found."""
    plan = three.plans[0]
    assert check_plan_file(plan).findings == ()
    edited = check_plan_file(msgspec.structs.replace(plan, num_slices=4))
    assert [finding.what for finding in edited.findings] == ["throughput.tokens_per_s"]


def test_table_says_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    """`2 x v5e:2x2` in the plan's line, and each slice's batch."""
    arguments = ["plan", "llama-3.1-8b", "--slice", "v5e:2x2", "--weights", "int8", "--context", "1024"]
    assert meshwright.main([*arguments, "--batch", "16", "--num-slices", "2"]) == 0
    line = next(text for text in capsys.readouterr().out.splitlines() if text.lstrip().startswith("1 "))
    assert "2 x v5e:2x2" in line
    assert "2 x 8" in line


@pytest.mark.parametrize(
    ("batches", "num_slices", "message"),
    [
        ((16, 9), 2, "batch 9 cannot be cut over 2 slices; expected a multiple of 2"),
        ((16,), 0, "num_slices 0: expected a whole number from 1"),
        ((), -1, "num_slices -1: expected a whole number from 1"),
    ],
)
def test_what_does_not_divide_is_bad_input(batches: tuple[int, ...], num_slices: int, message: str) -> None:
    """A batch that does not divide, and no number of slices, are refused."""
    with pytest.raises(InputError, match=message):
        batches_per_slice(batches, num_slices)
