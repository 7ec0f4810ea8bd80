"""Benchmark: plans of large models held against the TPU compiler, at full size and without a TPU.

`python tests/bench/bench_tpu_compiler.py [NAME ...]` prints a Markdown row for each telling case whose text has all
the names: what was promised and what was compiled, in GB (1e9) per device. `--matrix` does so for every model on slices
of 4 to 256 chips of every chip, in both phases, batches, contexts and dtypes in turn (hours); `--every 3` for each
third of those. Plans that do not fit are counted. Seconds are of CPU, over all the compiler's threads.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from itertools import product

import meshwright
from executor.compiler.compiled import Compiled
from executor.devices import prepare_environment
from executor.levels.tpu_compiler import Facts, compile_plan, judge, packed
from planner.plan.plan import Plan

Case = tuple[str, str, str, int, int, str, str]  # model, slice, phase, batch, context, dtype of weights, of the cache

CASES: tuple[Case, ...] = (
    ("llama-3.1-8b", "v5e:2x2", "decode", 16, 2048, "bf16", "bf16"),
    ("llama-3.1-8b", "v4:2x2x1", "decode", 64, 4096, "bf16", "bf16"),
    ("llama-3.1-8b", "v5e:4x4", "prefill", 16, 8192, "bf16", "bf16"),
    ("llama-3.1-70b", "v5e:4x4", "decode", 32, 8192, "bf16", "bf16"),
    ("llama-3.1-70b", "v5e:4x4", "decode", 64, 8192, "int8", "int8"),
    ("llama-3.1-70b", "v5e:16x16", "decode", 256, 8192, "bf16", "bf16"),
    ("llama-3.1-70b", "v5p:4x4x4", "decode", 64, 8192, "bf16", "bf16"),
    ("llama-3.1-70b", "tpu7x:2x2x2", "decode", 32, 8192, "bf16", "bf16"),
    ("llama-3.1-70b", "v6e:4x8", "prefill", 2, 8192, "bf16", "bf16"),
    ("llama-3.1-70b", "v6e:4x8", "prefill", 2, 8192, "int8", "int8"),
    ("llama-3.1-70b", "tpu7x:4x4x4", "prefill", 8, 8192, "bf16", "bf16"),
    ("qwen3-30b-a3b", "v5e:4x4", "decode", 64, 4096, "bf16", "bf16"),
    ("qwen3-30b-a3b", "v6e:2x4", "prefill", 2, 4096, "bf16", "bf16"),
    ("qwen3-30b-a3b", "v5p:2x2x1", "prefill", 8, 4096, "int8", "int8"),
    ("qwen3-30b-a3b", "v5e:2x4", "prefill", 8, 4096, "int8", "int8"),
    ("mixtral-8x7b", "v4:2x2x4", "decode", 32, 4096, "bf16", "bf16"),
    ("mixtral-8x7b", "v5p:2x2x4", "decode", 32, 4096, "bf16", "bf16"),
    ("mixtral-8x7b", "tpu7x:2x2x1", "prefill", 2, 4096, "bf16", "bf16"),
    ("palm-540b", "v5p:4x4x8", "decode", 256, 2048, "bf16", "bf16"),
    ("palm-540b", "v4:4x4x4", "decode", 64, 2048, "bf16", "bf16"),
    ("palm-540b", "v4:4x4x4", "prefill", 8, 2048, "bf16", "bf16"),
    ("palm-540b", "v6e:16x16", "prefill", 16, 2048, "bf16", "bf16"),
)
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b", "mixtral-8x7b", "palm-540b")
FLAT = ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8")
TOPOLOGIES = {"v4": CUBES, "v5e": FLAT, "v5p": CUBES, "v6e": FLAT, "tpu7x": CUBES}
WORK = {
    "decode": ((16, 2048), (64, 8192), (32, 4096), (128, 8192), (256, 2048)),
    "prefill": ((1, 8192), (4, 2048), (2, 4096), (16, 2048), (8, 4096)),
}
DTYPES = (("bf16", "bf16"), ("int8", "int8"), ("bf16", "bf16"), ("bf16", "int8"), ("int8", "bf16"))
HEAD = (
    "| model | slice | phase, batch x context, weights/cache | arguments | in all | beyond arguments and results "
    "| rewrites (extra MB) | differences | CPU s |\n|---|---|---|---|---|---|---|---|---|"
)


def matrix() -> Iterator[Case]:
    """Every model, chip, size and phase; work and dtypes in turn, so that all of them meet all chips and sizes."""
    for n, (size, model, chip) in enumerate(product(range(7), MODELS, TOPOLOGIES)):
        for phase, work in WORK.items():
            turn = n + n // 5 + n // 25
            yield (model, f"{chip}:{TOPOLOGIES[chip][size]}", phase, *work[turn % 5], *DTYPES[(turn + n // 5) % 5])


def plan_of(model: str, slice_: str, phase: str, batch: int, context: int, weights: str, kv: str) -> Plan:
    """The best plan of a case; raises `meshwright.NothingFits`."""
    found = meshwright.plan(model, slice_, phase=phase, batch=[batch], context=context, weights=weights, kv=kv, top=1)
    return found.plans[0]


def row(case: Case) -> tuple[str, str, list[str]]:
    """One line of the table, the verdict, and what is wrong."""
    model, slice_, phase, batch, context, weights, kv = case
    first = f"| {model} | {slice_} | {phase}, {batch} x {context}, {weights}/{kv} |"
    try:
        plan = plan_of(*case)
    except meshwright.NothingFits:
        return "", "does not fit", []
    start = time.process_time()
    facts = packed(compile_plan(plan))
    seconds, level = time.process_time() - start, judge(facts, "manual")
    wrong = [f"{f.what}: promised {f.promised}, found {f.found}" for f in level.findings]
    if not isinstance(facts.compiled, Compiled):
        return f"{first} does not fit: {facts.compiled} | | | | | |", level.status, wrong
    return f"{first} {_cells(facts, facts.compiled, level.status)} | {seconds:.1f} |", level.status, wrong


def _cells(facts: Facts, compiled: Compiled, verdict: str) -> str:
    comparison, memory = facts.comparison(compiled), facts.plan.memory
    kinds = {r.kind for r in comparison.rewrites}
    extra = sum(r.extra_bytes for r in comparison.rewrites) / 1e6
    return " | ".join(
        (
            f"{facts.stored_bytes / 1e9:.4f} -> {compiled.argument_bytes / 1e9:.4f}",
            f"{memory.total_bytes / 1e9:.4f} -> {compiled.total_bytes / 1e9:.4f}",
            f"{memory.activation_bytes / 1e9:.4f} -> {compiled.temp_bytes / 1e9:.4f}",
            f"{', '.join(sorted(kinds))} ({extra:+.1f})" if kinds else "none",
            f"{len(comparison.differences)}; {verdict}",
        )
    )


def main() -> None:
    """Print the table of the cases asked for, then what is wrong with those that fail, and how many did what."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--matrix", action="store_true")
    parser.add_argument("--every", type=int, default=1)
    asked = parser.parse_args()
    prepare_environment()
    cases = list(matrix() if asked.matrix else CASES)[:: asked.every]
    verdicts, wrong = Counter[str](), []
    print(HEAD)
    for case in cases:
        text = " ".join(map(str, case))
        if all(name in text for name in asked.names):
            line, verdict, findings = row(case)
            verdicts[verdict] += 1
            wrong += [f"- {text}: {finding}" for finding in findings]
            if line:
                print(line, flush=True)
    print("\n" + "\n".join([*wrong, ", ".join(f"{n} {verdict}" for verdict, n in sorted(verdicts.items()))]))


if __name__ == "__main__":
    main()
