"""Benchmark: what the default cuts of torus axes lose against all cuts, on slices up to 64 chips.

`python tests/bench/bench_cuts.py [MODEL ...]`: one line for each model, slice and phase; then the largest gain.
"""

import sys
import time

from planner.api import plan
from planner.best.nothing import NothingFits
from planner.plan.plan import Plan

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b", "mixtral-8x7b", "palm-540b", "gpt-oss-120b")
SLICES = (
    "v5e:4x8",
    "v5e:8x8",
    "v6e:4x8",
    "v6e:8x8",
    "v5p:2x4x4",
    "v5p:4x4x4",
    "v4:4x4x4",
    "tpu7x:2x2x4",
)
WORK = (("decode", 64, 8192), ("prefill", 8, 8192))


def best(model: str, slice_name: str, phase: str, batch: int, context: int, cuts: str) -> tuple[Plan | None, float]:
    """The best plan, or None where nothing fits; and the seconds of CPU that it took."""
    started = time.process_time()
    options = {"weights": "int8", "kv": "int8", "top": 1, "workers": 1}
    try:
        found = plan(model, slice_name, phase=phase, batch=(batch,), context=context, cuts=cuts, **options)  # type: ignore[arg-type]
    except NothingFits:
        return None, time.process_time() - started
    return found.plans[0], time.process_time() - started


def main(models: tuple[str, ...] = MODELS) -> None:
    """Print the gain of every case, and the largest."""
    print(f"{'model':14} {'slice':12} {'phase':8} {'two ms':>10} {'all ms':>10} {'gain':>7} {'two s':>6} {'all s':>6}")
    gains = []
    for model in models:
        for slice_name in SLICES:
            for phase, batch, context in WORK:
                two, two_s = best(model, slice_name, phase, batch, context, "two")
                line = f"{model:14} {slice_name:12} {phase:8}"
                if two is None:
                    print(f"{line} nothing fits", flush=True)
                    continue
                every, all_s = best(model, slice_name, phase, batch, context, "all")
                assert every is not None
                gains.append(two.cost.step_s / every.cost.step_s - 1)
                steps = f"{two.cost.step_s * 1e3:10.4f} {every.cost.step_s * 1e3:10.4f}"
                print(f"{line} {steps} {gains[-1]:7.3%} {two_s:6.1f} {all_s:6.1f}", flush=True)
    print(f"{len(gains)} cases; the largest gain is {max(gains):.3%}")


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or MODELS)
