"""The worked answers of the Scaling Book's inference chapters, 7 and 8, by reference id.

As in `test_book_vectors.py`: `printed` is what the book prints and `rel` how far its own rounding moves it,
with the reason beside every `rel` above half a percent; `exact` is our value, derived by hand.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from oracles.torus import legal_slices

from mesh.slices import parse_slice
from strategies.book.crossover import (
    Grid,
    best_x_ways,
    crossover_chips,
    generation_ici_bound_ways,
    latency_bound_bytes,
    tensor_parallel_bound_ways,
    ws1d_comms_s,
    ws2d_comms_s,
)
from strategies.book.intensity import critical_batch_tokens
from strategies.book.roofline import (
    Transformer,
    chips_to_hold,
    general_step_s,
    kv_bytes_per_token,
    largest_batch,
    max_tokens_per_s,
    min_step_s,
    prefill_servers_per_decode_server,
    queries_per_s_per_chip,
    transformer_params,
)
from strategies.book.rooftable import roofline_table
from strategies.models.configs import load_model

REFERENCE = Path(__file__).parents[3] / "shared" / "reference" / "book_vectors.json"  # not in the repository

V5E_FLOPS, V5E_HBM = 1.97e14, 8.2e11
QUIZ = {"kv_bytes_per_seq": 8192 * 100e3, "param_bytes": 30e9, "total_hbm_bytes_per_s": 16 * V5E_HBM}
LLAMA3 = load_model("llama-3.1-70b")


class Check(NamedTuple):
    """One number: reference id, key in its `expected` (or ""), printed value, tolerance, ours, exact."""

    vector: str
    part: str
    printed: float | None
    rel: float
    got: Callable[[], float]
    exact: float | None = None


MHA = {  # batch: kv_GB, total_GB, step_ms, tok_s; the columns the chapter calls GiB are 1e9 bytes
    1: (6.7, 32.7, 4.98, 200.61),
    8: (53.6, 79.6, 12.13, 659.30),
    16: (107.2, 133.2, 20.30, 787.99),
    32: (214.4, 240.4, 36.65, 873.21),
    64: (428.8, 454.8, 69.33, 923.13),
    240: (1608, 1634, 249.09, 963.53),
}
GQA = {  # the cache 5 times smaller: 8 KV heads
    1: (1.34, 27.34, 4.17, 239.94),
    8: (10.72, 36.72, 5.60, 1429.19),
    16: (21.44, 47.44, 7.23, 2212.48),
    32: (42.88, 68.88, 10.50, 3047.62),
    240: (321.6, 347.6, 52.99, 4529.34),
}
GQA_B64 = (85.76, 111.76, 17.04, 3756.62)  # in the chapter's table, not in the reference


def llama_rows(kv_heads: int | None) -> dict[int, tuple[float, ...]]:
    """`roofline_table` of LLaMA-2 13B on 8 v5e at 8192 tokens, in the columns of the chapter's tables."""
    table = roofline_table(
        load_model("llama-2-13b"), parse_slice("v5e:2x4"), context=8192, batches=list(MHA), kv_heads=kv_heads
    )
    return {
        row.batch: (row.kv_bytes / 1e9, row.total_bytes / 1e9, row.step_s * 1e3, row.tokens_per_s) for row in table.rows
    }


def llama_checks(name: str, printed: dict[int, tuple[float, ...]], kv_heads: int | None) -> list[Check]:
    """Half a percent: the chapter rounds 26.03 GB of parameters to 26 and 6.711 GB of cache to 6.7."""
    rows = llama_rows(kv_heads)
    parts = ("kv_GB", "total_GB", "step_ms", "tok_s")
    return [
        Check(f"ch7.llama2_13b_{name}_B{batch}", part, value, 5e-3, lambda ours=ours: ours)
        for batch, values in printed.items()
        for part, value, ours in zip(parts, values, rows[batch], strict=True)
    ]


def load_s(param_bytes: float, chips: int) -> float:
    """Seconds to read the parameters alone on v5e chips."""
    return min_step_s(batch=0, kv_bytes_per_seq=0, param_bytes=param_bytes, total_hbm_bytes_per_s=chips * V5E_HBM)


def min_topology(param_bytes: float, kv_bytes_per_seq: float) -> dict[str, float]:
    """Ch. 8: the least v5e slice (16e9 bytes a chip) that holds the parameters, filled up with caches."""
    least = chips_to_hold(total_bytes=param_bytes, hbm_bytes=16e9)
    chips = next(slice_.chips for slice_ in legal_slices("v5e") if slice_.chips >= least)
    sizes = {"param_bytes": param_bytes, "kv_bytes_per_seq": kv_bytes_per_seq}
    n_kv = largest_batch(total_hbm_bytes=chips * 16e9, **sizes)
    doubled = largest_batch(total_hbm_bytes=2 * chips * 16e9, **sizes)
    book = {"step_s": 0.019, "tokens_per_query": 512}
    return {
        "param_GB": param_bytes / 1e9,
        "kv_per_tok": kv_bytes_per_seq / 8192,
        "min_chips": least,
        "slice_chips": chips,
        "remaining_GB": (chips * 16e9 - param_bytes) / 1e9,
        "n_kv": n_kv,
        "step_ms": min_step_s(batch=n_kv, total_hbm_bytes_per_s=chips * V5E_HBM, **sizes) * 1e3,
        "qps_chip_512tok": queries_per_s_per_chip(batch=n_kv, chips=chips, **book),
        "qps_chip_doubled": queries_per_s_per_chip(batch=doubled, chips=2 * chips, **book),
    }


def min_topology_checks() -> list[Check]:
    """From the book's rounded 70e9 parameters and 162e3 bytes per token, and from the exact ones.

    The book truncates: the step of 19.4 ms to 19, 0.276 queries to 0.27, 0.4497 to 0.44. Exactly (70.55e9 and
    163840) one cache fewer fits: 42.8, not 43.7.
    """
    printed = {
        "bf16": (2, {"param_GB": 140, "kv_per_tok": 324e3, "min_chips": 8.75, "slice_chips": 16,
                     "remaining_GB": 116, "n_kv": 43, "step_ms": 19, "qps_chip_512tok": 0.27,
                     "qps_chip_doubled": 0.44}),
        "int8": (1, {"param_GB": 70, "kv_per_tok": 162e3, "min_chips": 4.38, "slice_chips": 8,
                     "remaining_GB": 58, "n_kv": 43, "step_ms": 19, "qps_chip_512tok": 0.55,
                     "qps_chip_doubled": 0.9}),
    }  # fmt: skip
    checks = []
    for dtype, (size, parts) in printed.items():
        book = min_topology(size * 70e9, size * 162e3 * 8192)
        exact = min_topology(size * LLAMA3.params, size * LLAMA3.kv_elements(8192))
        vector = f"ch8.min_topology_{dtype}"
        checks += [
            Check(vector, part, value, 0.025, lambda part=part, book=book: book[part]) for part, value in parts.items()
        ]
        checks.append(Check(vector, "", None, 0, lambda exact=exact: exact["n_kv"], 42))
    return checks


def book_18b(kv_heads: int) -> Transformer:
    """The 18B model of the chapter's problems."""
    return Transformer(
        layers=64, d=4096, f=16384, heads=32, kv_heads=kv_heads, head_dim=256, vocab=32128, vocab_matrices=1
    )


def ch7_params(experts: int) -> int:
    """Ch. 7 problems 1 and 5: L*D*(3EF + 2H(N + K)) + D*V."""
    return transformer_params(book_18b(8), experts=experts)


def b32(part: str) -> float:
    """Ch. 8: LLaMA-3-70B int8, B = 32 at 8k context on 8 v5e chips, by `roofline_table`."""
    workload = {"context": 8192, "batches": [32], "weights": "int8", "kv": "int8"}
    (row,) = roofline_table(LLAMA3, parse_slice("v5e:2x4"), **workload).rows
    return {
        "kv_GB": row.kv_bytes / 1e9,
        "total_GB": row.total_bytes / 1e9,
        "step_ms": row.step_s * 1e3,
        "tok_s": row.tokens_per_s,
        "tok_s_chip": row.tokens_per_s_per_chip,
    }[part]


def max_batch_128k(kv_heads: int) -> int:
    """Ch. 7 problem 2: sequences of 128e3 tokens on 16 chips of 16e9 bytes, int8; K resizes weights too."""
    model = transformer_params(book_18b(kv_heads))
    kv_bytes = kv_bytes_per_token(layers=64, kv_heads=kv_heads, head_dim=256, value_bytes=1) * 128e3
    return largest_batch(total_hbm_bytes=256e9, param_bytes=model, kv_bytes_per_seq=kv_bytes)


def ws2d_best(chips: float) -> float:
    """Problem 7 at the chapter's X = sqrt(N/8), YZ = sqrt(8N), F = 4D, with B = D = W = 1."""
    return ws2d_comms_s(
        batch=1, d=1, f=4, grid=Grid(x=math.sqrt(chips / 8), yz=math.sqrt(8 * chips)), ici_bytes_per_s=1, limit=True
    )


CHECKS = [
    *llama_checks("MHA", MHA, None),
    *llama_checks("kv5x", GQA, 8),
    # printed with two digits
    Check("ch7.quiz_B4", "", 2.5e-3, 0.015, lambda: min_step_s(batch=4, **QUIZ), 2.536341e-3),
    Check("ch7.quiz_B256", "", 0.021, 0.01, lambda: general_step_s(
        batch=256, params=30e9, total_flops_per_s=16 * V5E_FLOPS, **QUIZ), 0.020857487),
    Check("ch7.q1", "params", 18.4e9, 2e-3, lambda: ch7_params(1), 18385207296),
    Check("ch7.q1", "kv_bytes_per_token_int8", 262e3, 2e-3, lambda: kv_bytes_per_token(
        layers=64, kv_heads=8, head_dim=256, value_bytes=1), 262144),
    Check("ch7.q2", "batch_K8", 7, 0, lambda: max_batch_128k(8)),
    Check("ch7.q2", "batch_K1", 56, 0, lambda: max_batch_128k(1)),
    Check("ch7.q3", "", 1.4e-3, 2e-3, lambda: load_s(ch7_params(1), 16), 1.4013116e-3),
    Check("ch7.q5", "total", 212e9, 2e-3, lambda: ch7_params(16), 211658735616),
    Check("ch7.q5", "active", 31.2e9, 3e-3, lambda: ch7_params(2), 31270109184),
    Check("ch7.q5", "B_crit", 1920, 2e-3, lambda: critical_batch_tokens(
        flops_per_s=V5E_FLOPS, hbm_bytes_per_s=V5E_HBM, experts=16, experts_per_token=2), 1921.951),
    Check("ch7.q7_2dws", "", None, 0, lambda: ws2d_best(72), math.sqrt(128 / 72)),
    Check("ch7.q7_2dws", "", None, 0, lambda: ws2d_comms_s(
        batch=5, d=7, f=11, grid=Grid(x=4, yz=16), ici_bytes_per_s=1, limit=True), 2 * 5 * 7 / 4 + 4 * 5 * 11 / 16),
    Check("ch7.q7_2dws", "", None, 0, lambda: best_x_ways(chips=72, d=1, f=4), 3),
    Check("ch7.q7_crossover", "", 72, 1e-9, lambda: crossover_chips(d=1, f=4)),
    Check("ch7.q7_crossover", "", None, 0, lambda: crossover_chips(d=1, f=3.5), 32 * 3.5 * (3 / 4) ** 2),
    Check("ch7.q7_crossover", "", None, 0, lambda: ws1d_comms_s(
        batch=1, d=1, chips=72, ici_bytes_per_s=1, limit=True) / ws2d_best(72), 1),
    # beta = 8 as the book rounds it; 8.2e11 / 9e10 is 9.11
    Check("ch7.ici_bound", "", 64, 1e-9, lambda: generation_ici_bound_ways(
        f=16384, batch=32, hbm_bytes_per_s=8, ici_bytes_per_s=1)),
    Check("ch7.ici_bound", "", None, 0, lambda: generation_ici_bound_ways(
        f=16384, batch=32, hbm_bytes_per_s=V5E_HBM, ici_bytes_per_s=9e10), 56.19512),
    # "about 600M"; the two matmuls it describes have 2 * 8192 * 32768 = 537M: 327 us
    Check("ch7.appA_floor", "", 3.65e-4, 3e-3, lambda: load_s(2 * 6e8, 4), 3.658537e-4),
    Check("ch7.appA_floor", "", None, 0, lambda: load_s(2 * 2 * 8192 * 32768, 4), 3.273603e-4),
    Check("ch7.appC", "", 360e3, 1e-9, lambda: latency_bound_bytes(ways=8, link_bytes_per_s=4.5e10)),
    # 160 KiB printed as if 160e3
    Check("ch8.kv", "", 160e3, 0.025, lambda: kv_bytes_per_token(
        layers=80, kv_heads=8, head_dim=128, value_bytes=1), 163840),
    # from 162e3 bytes per token
    Check("ch8.kv32k", "GB_per_seq", 5.3, 0.015, lambda: LLAMA3.kv_elements(32768) / 1e9, 5.368709),
    Check("ch8.kv32k", "total_TB", 1.3, 0.01, lambda: 240 * LLAMA3.kv_elements(32768) / 1e12, 1.288490),
    # from 1.3e12 and 70e9 bytes; unrounded it is 84.94, so 85
    Check("ch8.kv32k", "chips", 86, 0, lambda: math.ceil(
        chips_to_hold(total_bytes=70e9 + 1.3e12, hbm_bytes=16e9))),
    Check("ch8.kv32k", "", None, 0, lambda: chips_to_hold(
        total_bytes=LLAMA3.params + 240 * LLAMA3.kv_elements(32768), hbm_bytes=16e9), 84.94022),
    # all five from 160e3 bytes per token and 70e9 parameters
    Check("ch8.b32_4x2", "kv_GB", 41.9, 0.026, lambda: b32("kv_GB"), 42.94967),
    Check("ch8.b32_4x2", "total_GB", 112, 0.015, lambda: b32("total_GB"), 113.5034),
    Check("ch8.b32_4x2", "step_ms", 17, 0.02, lambda: b32("step_ms"), 17.30234),
    Check("ch8.b32_4x2", "tok_s", 1882, 0.02, lambda: b32("tok_s"), 1849.461),
    Check("ch8.b32_4x2", "tok_s_chip", 235, 0.02, lambda: b32("tok_s_chip"), 231.1827),
    *min_topology_checks(),
    Check("ch8.TP_limit", "", 26, 5e-3, lambda: tensor_parallel_bound_ways(
        f=28672, flops_per_s=2200, ici_bytes_per_s=1, axes=2), 26.06545),
    Check("ch8.PG", "", 3, 5e-3, lambda: prefill_servers_per_decode_server(
        prefill_s=0.91, batch=32, step_s=0.019, tokens_per_query=512), 2.993421),
]  # fmt: skip


def name(check: Check) -> str:
    """The id and part, to name failures."""
    return f"{check.vector}.{check.part}" if check.part else check.vector


@pytest.mark.parametrize("check", CHECKS, ids=name)
def test_book(check):
    """A public function gives what the book prints, within its rounding, and our exact value."""
    if check.printed is not None:
        assert check.got() == pytest.approx(check.printed, rel=check.rel, abs=0)
    if check.exact is not None:
        assert check.got() == pytest.approx(check.exact, rel=1e-6)


@pytest.mark.parametrize(("printed", "kv_bytes"), [(MHA, 6.7e9), (GQA | {64: GQA_B64}, 1.34e9)])
def test_llama_tables_digit_by_digit(printed, kv_bytes):
    """From the chapter's rounded 26 GB and 6.7 GB, min step time and max tokens/s give every digit."""
    sizes = {"kv_bytes_per_seq": kv_bytes, "param_bytes": 26e9, "total_hbm_bytes_per_s": 8 * V5E_HBM}
    for batch, (_, _, step_ms, tok_s) in printed.items():
        assert min_step_s(batch=batch, **sizes) * 1e3 == pytest.approx(step_ms, abs=0.00501)
        assert max_tokens_per_s(batch=batch, **sizes) == pytest.approx(tok_s, abs=0.00501)


def test_llama_table_column_missing_from_the_reference():
    """The chapter's second table at batch 64."""
    assert llama_rows(8)[64] == pytest.approx(GQA_B64, rel=5e-3)


@pytest.mark.skipif(not REFERENCE.exists(), reason="the reference is outside the repository")
def test_printed_values_are_the_reference():
    """Every printed value here is the reference's."""
    expected = {vector["id"]: vector["expected"] for vector in json.loads(REFERENCE.read_text())}
    for check in CHECKS:
        if check.printed is not None:
            value = expected[check.vector]
            assert (value[check.part] if check.part else value) == check.printed, name(check)


@pytest.mark.skipif(not REFERENCE.exists(), reason="the reference is outside the repository")
def test_no_vector_is_forgotten():
    """Every printed or formula vector of chapters 7 and 8 has a check."""
    vectors = json.loads(REFERENCE.read_text())
    wanted = {
        vector["id"]
        for vector in vectors
        if vector["chapter"].split()[0] in ("7", "8") and vector["kind"] in ("printed", "formula")
    }
    checked = {check.vector for check in CHECKS}
    assert wanted <= checked <= {vector["id"] for vector in vectors}
