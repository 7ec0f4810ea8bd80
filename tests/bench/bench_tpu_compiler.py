"""Benchmark: plans of large models held against the TPU compiler, at full size and without a TPU.

`python tests/bench/bench_tpu_compiler.py [NAME ...]` prints a Markdown row for each case: what was promised and what
was compiled, in GB (1e9) per device.
"""

import sys

import meshwright
from executor.compiled import Compiled
from executor.devices import prepare_environment
from executor.tpu import Facts, compile_plan, judge
from planner.plan import Plan

CASES = (  # model, slice, phase, batch, context, dtype of weights, of the cache
    ("llama-3.1-8b", "v5e:2x2", "decode", 16, 2048, "bf16", "bf16"),
    ("llama-3.1-8b", "v4:2x2x1", "decode", 64, 4096, "bf16", "bf16"),
    ("llama-3.1-8b", "v5e:4x4", "prefill", 16, 8192, "bf16", "bf16"),
    ("llama-3.1-70b", "v5e:4x4", "decode", 32, 8192, "bf16", "bf16"),
    ("llama-3.1-70b", "v5e:4x4", "decode", 64, 8192, "int8", "int8"),
    ("llama-3.1-70b", "v5e:16x16", "decode", 256, 8192, "bf16", "bf16"),
    ("llama-3.1-70b", "v5p:4x4x4", "decode", 64, 8192, "bf16", "bf16"),
    ("llama-3.1-70b", "tpu7x:2x2x2", "decode", 32, 8192, "bf16", "bf16"),
    ("llama-3.1-70b", "v6e:4x8", "prefill", 2, 8192, "bf16", "bf16"),
    ("llama-3.1-70b", "tpu7x:4x4x4", "prefill", 8, 8192, "bf16", "bf16"),
    ("qwen3-30b-a3b", "v5e:4x4", "decode", 64, 4096, "bf16", "bf16"),
    ("qwen3-30b-a3b", "v6e:2x4", "prefill", 2, 4096, "bf16", "bf16"),
    ("qwen3-30b-a3b", "v5p:2x2x2", "prefill", 16, 4096, "bf16", "bf16"),
    ("mixtral-8x7b", "v4:2x2x4", "decode", 32, 4096, "bf16", "bf16"),
    ("mixtral-8x7b", "tpu7x:2x2x1", "prefill", 2, 4096, "bf16", "bf16"),
    ("palm-540b", "v5p:4x4x8", "decode", 256, 2048, "bf16", "bf16"),
    ("palm-540b", "v4:4x4x4", "prefill", 8, 2048, "bf16", "bf16"),
    ("palm-540b", "v6e:16x16", "prefill", 16, 2048, "bf16", "bf16"),
)
HEAD = (
    "| model | slice | phase, batch x context, weights/cache | arguments | in all | beyond arguments and results "
    "| rewrites (extra MB) | differences | s |\n|---|---|---|---|---|---|---|---|---|"
)


def plan_of(model: str, slice_: str, phase: str, batch: int, context: int, weights: str, kv: str) -> Plan:
    """The best plan of a case."""
    found = meshwright.plan(model, slice_, phase=phase, batches=[batch], context=context, weights=weights, kv=kv, top=1)
    return found.plans[0]


def row(case: tuple[str, str, str, int, int, str, str]) -> str:
    """One line of the table."""
    model, slice_, phase, batch, context, weights, kv = case
    facts = compile_plan(plan_of(*case))
    first = f"| {model} | {slice_} | {phase}, {batch} x {context}, {weights}/{kv} |"
    if not isinstance(facts.made, Compiled):
        return f"{first} does not fit: {facts.made} | | | | | |"
    return f"{first} {_cells(facts, facts.made)}"


def _cells(facts: Facts, made: Compiled) -> str:
    comparison, memory = facts.comparison(made), facts.plan.memory
    kinds = {r.kind for r in comparison.rewrites}
    extra = sum(r.extra_bytes for r in comparison.rewrites) / 1e6
    level = judge(facts, "manual")
    return " | ".join(
        (
            f"{facts.stored_bytes / 1e9:.4f} -> {made.argument_bytes / 1e9:.4f}",
            f"{memory.total_bytes / 1e9:.4f} -> {made.total_bytes / 1e9:.4f}",
            f"{memory.activation_bytes / 1e9:.4f} -> {made.temp_bytes / 1e9:.4f}",
            f"{', '.join(sorted(kinds))} ({extra:+.1f})" if kinds else "none",
            f"{len(comparison.differences)}; {level.status}",
            f"{made.seconds:.1f} |",
        )
    )


def main(names: list[str]) -> None:
    """Print the table of the cases whose text has one of the names, or of all."""
    prepare_environment()
    print(HEAD)
    for case in CASES:
        if not names or any(name in " ".join(map(str, case)) for name in names):
            print(row(case), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
