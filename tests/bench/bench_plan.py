"""Benchmark: whole processes of `meshwright plan`, start-up included: single slices, all of a chip, and scaling.

`python tests/bench/bench_plan.py [slices|chips|scaling]`, default all three.
"""

import json
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

TO_256, TO_1024 = (",".join(str(1 << i) for i in range(n)) for n in (9, 11))
INT8 = ("--weights", "int8", "--kv", "int8")
MOE = "tests/cases/moe-671b-without-mla.json"
CASES = {
    "llama-3.1-70b decode v5e:4x4": ("llama-3.1-70b", "--slice", "v5e:4x4", "--batch", TO_256, *INT8),
    "llama-3.1-70b decode v5e:16x16": ("llama-3.1-70b", "--slice", "v5e:16x16", "--batch", TO_256, *INT8),
    "qwen3-30b-a3b decode v5e:4x4": ("qwen3-30b-a3b", "--slice", "v5e:4x4", "--batch", TO_256, *INT8),
    "llama-3.1-70b prefill v5e:4x4": (
        "llama-3.1-70b", "--slice", "v5e:4x4", "--phase", "prefill", "--batch", "1,2,4", *INT8,
    ),
}  # fmt: skip
CHIPS = {
    "llama-3.1-70b, all v5e slices, decode, batches to 1024": ("llama-3.1-70b", "--chip", "v5e", "--batch", TO_1024),
    "671B MoE, all v5e slices, decode, batches to 1024": (MOE, "--chip", "v5e", "--batch", TO_1024, *INT8),
    "llama-3.1-70b, v5p:16x20x28 alone": ("llama-3.1-70b", "--slice", "v5p:16x20x28", "--batch", TO_1024),
    "llama-3.1-70b, all 96 v5p slices": ("llama-3.1-70b", "--chip", "v5p", "--batch", TO_1024),
}
SCALING = ("2x2x1", "2x2x4", "4x4x4", "4x8x8", "8x8x16", "12x12x28", "16x16x16", "16x16x24", "16x20x28")


def run_once(arguments: Sequence[str]) -> tuple[float, dict[str, float]]:
    """Seconds of one process, and what it says of its search."""
    command = shutil.which("meshwright") or sys.exit("no meshwright command: pip install -e '.[dev]' first")
    started = time.perf_counter()
    done = subprocess.run(
        [command, "plan", *arguments, "--format", "json", "--progress", "never"], capture_output=True, check=True
    )
    return time.perf_counter() - started, json.loads(done.stdout)["search"]


def table(cases: dict[str, Sequence[str]], repeats: int) -> None:
    """Print the median wall time of each case, and the search's own figures."""
    print(f"{'case':55} {'wall s':>7} {'search s':>9} {'evaluations':>13} {'per s':>10} {'candidates':>11}")
    for name, case in cases.items():
        runs = [run_once(case) for _ in range(repeats)]
        search = runs[-1][1]
        wall = statistics.median(seconds for seconds, _ in runs)
        rate = search["evaluations_per_s"]
        figures = f"{search['wall_s']:9.2f} {search['evaluations']:13,} {rate:10,.0f} {search['candidates']:11.2e}"
        print(f"{name:55} {wall:7.2f} {figures}", flush=True)


def main(parts: Sequence[str], repeats: int = 3) -> None:
    """Print the tables that are asked for, and the most memory that a process took."""
    if "slices" in parts:
        table(CASES, repeats)
    if "chips" in parts:
        table(CHIPS, repeats)
    if "scaling" in parts:
        names = (f"v5p:{dims}" for dims in SCALING)
        table({name: ("llama-3.1-70b", "--slice", name, "--batch", TO_1024, *INT8) for name in names}, 1)
    peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(f"the largest process took {peak_bytes / 1e9:.2f} GB")


if __name__ == "__main__":
    main(sys.argv[1:] or ("slices", "chips", "scaling"))
