"""Benchmark: whole processes of `meshwright plan` on one slice, start-up included."""

import json
import shutil
import statistics
import subprocess
import sys
import time

BATCHES = "1,2,4,8,16,32,64,128,256"
CASES = {
    "llama-3.1-70b decode v5e:4x4": ("llama-3.1-70b", "v5e:4x4", "decode", BATCHES),
    "llama-3.1-70b decode v5e:16x16": ("llama-3.1-70b", "v5e:16x16", "decode", BATCHES),
    "qwen3-30b-a3b decode v5e:4x4": ("qwen3-30b-a3b", "v5e:4x4", "decode", BATCHES),
    "llama-3.1-70b prefill v5e:4x4": ("llama-3.1-70b", "v5e:4x4", "prefill", "1,2,4"),
}


def run_once(model: str, slice_name: str, phase: str, batches: str) -> tuple[float, dict[str, float]]:
    """Seconds of one process, and what it says of its search."""
    command = shutil.which("meshwright") or sys.exit("no meshwright command: pip install -e '.[dev]' first")
    flags = ["--weights", "int8", "--kv", "int8", "--format", "json", "--progress", "never"]
    started = time.perf_counter()
    done = subprocess.run(
        [command, "plan", model, "--slice", slice_name, "--phase", phase, "--batch", batches, *flags],
        capture_output=True,
        check=True,
    )
    return time.perf_counter() - started, json.loads(done.stdout)["search"]


def main(repeats: int = 5) -> None:
    """Print the median wall time of each case, and the search's own figures."""
    print(f"{'case':34} {'wall s':>7} {'search s':>9} {'evaluations':>12} {'candidates':>14}")
    for name, case in CASES.items():
        runs = [run_once(*case) for _ in range(repeats)]
        search = runs[-1][1]
        wall = statistics.median(seconds for seconds, _ in runs)
        print(f"{name:34} {wall:7.2f} {search['wall_s']:9.2f} {search['evaluations']:12,} {search['candidates']:14.2e}")


if __name__ == "__main__":
    main()
