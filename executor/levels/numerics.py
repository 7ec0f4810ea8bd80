"""Level `numerics` runs the plan's programs on host devices and compares their logits with the unsharded reference.

A decode plan starts from an empty KV cache. Its sequences begin at different steps, so that their lengths differ; in
the last 16 steps all of them run, up to the cache's last slot. A prefill plan reads prompts of different lengths; their
caches are inserted into an unsharded decode engine, which generates for 16 more steps. Every step's logits are
compared. The error is the largest difference in units of the standard deviation of the reference's logits.

Both results are rounded. In float32 each is off by about 4e-6, so the bound 1e-5 holds for any order of the sums. In
bf16 (2^-8 per rounding) a single token can be far off if a router or a softmax decides differently, so the bound is on
the median over tokens of the root-mean-square error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from executor.devices import Unavailable
from executor.levels.common import MakeEngine, check_supported, host_mesh, raised
from executor.levels.level import MANUAL, LevelOptions
from executor.levels.shrink import F32, STEPS, shrink
from executor.loaded import Loaded
from executor.processes.process_arrays import fetch, lost_others
from executor.reference import Params, random_params, reference_logits
from executor.run.engine import Engine, engine, engine_of
from executor.run.interpret import failed_step
from executor.verdict import Finding, Level, verdict
from executor.wording import first_line
from planner.plan.plan import Plan
from strategies.components import IDLE, components
from strategies.layout import Assigned, lay_out
from strategies.models.workload import Workload

BOUNDS = {"f32": 1e-5, "bf16": 0.02}
"""The bound on the error by dtype, in standard deviations: the largest error (f32) or the median token's RMS (bf16)."""
_SHOWN = 5


def numerics(loaded: Loaded, options: LevelOptions = MANUAL) -> Level:
    """Return the level `numerics` of a plan, run on its shrunken copy (`shrink`) in float32.

    Raises `Unavailable` if the model or the mesh cannot be run here.
    """
    check_supported(loaded.plan)
    small = shrink(loaded, F32)
    return run_numerics(small, host_mesh(small), options.mode, engine_of)


def run_numerics(loaded: Loaded, mesh: Mesh, mode: str, make: MakeEngine) -> Level:
    """Return the level `numerics` of a plan that is small enough to run as it is, in float32 or bf16.

    `make` builds the engine. A program that raises an error fails the level, and the finding names its step. Raises
    `Unavailable` if the processes of a distributed run lose each other.
    """
    plan = loaded.plan
    try:
        run = _Run(plan, make(loaded, mesh))
        errors = [*run.decode()] if plan.phase == "decode" else [*run.prefill()]
    except Exception as error:  # a program that cannot be run is a finding, whatever it raises
        if lost_others(error):
            raise Unavailable(f"the processes lost each other: {first_line(error)}") from None
        return verdict("numerics", mode, 1, (raised(failed_step(error) or "the step", "runs", error),))
    return _judge(plan, mode, errors)


@dataclass(frozen=True)
class Error:
    """The error of one token's logits against the reference's, in standard deviations of the reference's logits.

    `largest`, `rms`: the largest error and the root mean square, over the vocabulary. `token`: the engine chose the
    reference's best token, or one that is as good within the bound.
    """

    where: str
    largest: float
    rms: float
    token: bool


@dataclass(frozen=True)
class _Run:
    """The comparison of one engine with the reference, token by token."""

    plan: Plan
    engine: Any

    @property
    def _params(self) -> Params:
        dtype = jnp.bfloat16 if self.plan.dtypes.weights == "bf16" else jnp.float32
        return random_params(self.plan.model, jax.random.key(0), dtype)

    def decode(self) -> Iterator[Error]:
        """Yield the errors of a decode run; a sequence repeats its first token until the step at which it starts."""
        B, steps = self.plan.padded_batch, self.plan.context
        starts = np.linspace(0, max(0, steps - STEPS), B).astype(int)
        tokens, expected = self._reference(B, steps)
        weights, cache = self.engine.place(self._params), self.engine.init_cache()
        for step in range(steps):
            positions = np.maximum(0, step - starts)
            chosen, logits, cache = self.engine.generate(
                weights, cache, tokens[np.arange(B), positions], positions, logits=True
            )
            yield from self._errors(f"decode step {step}", positions, expected, chosen, logits)

    def prefill(self) -> Iterator[Error]:
        """Yield the errors of a prefill of prompts of different lengths, and of the decode steps that follow it.

        Each prompt's cache is inserted into another slot of the batch than the prompt's own.
        """
        B, T = self.plan.padded_batch, self.plan.context
        lengths, slots = np.linspace(T, 1, B).astype(int), np.roll(np.arange(B), 1)
        tokens, expected = self._reference(B, T + STEPS)
        params = self._params
        prefill_weights = self.engine.place(params)
        tokens_out, logits, prompts = self.engine.prefill(prefill_weights, tokens[:, :T], lengths, logits=True)
        yield from self._errors("prefill", lengths - 1, expected, tokens_out, logits)
        decoder = unsharded(self.plan, self.engine.mesh, T + STEPS)
        weights, cache = decoder.place(params), decoder.insert(decoder.init_cache(), prompts, slots)
        slot_order = np.argsort(slots)
        for step in range(STEPS):
            positions = lengths + step
            inputs = tokens[np.arange(B), positions][slot_order], positions[slot_order]
            tokens_out, step_logits, cache = decoder.generate(weights, cache, *inputs, logits=True)
            in_prompt_order = fetch(tokens_out)[slots], fetch(step_logits)[slots]
            yield from self._errors(f"step {step} after prefill", positions, expected, *in_prompt_order)

    def _reference(self, B: int, T: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        tokens = np.random.default_rng(0).integers(0, self.plan.model.V, (B, T))
        return tokens, np.asarray(reference_logits(self.plan.model, self._params, jnp.asarray(tokens)))

    def _errors(
        self, what: str, positions: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], chosen: Any, logits: Any
    ) -> Iterator[Error]:
        bound, scale = BOUNDS[self.plan.dtypes.weights], expected.std()
        actual = fetch(logits).astype(np.float32)[:, : expected.shape[-1]]
        for b, token in enumerate(fetch(chosen)):
            reference = expected[b, positions[b]]
            difference = (actual[b] - reference) / scale
            is_best = 0 <= token < len(reference) and reference[token] >= reference.max() - 2 * scale * max(
                bound, abs(difference).max()
            )
            where = f"{what}, sequence {b}, position {positions[b]}"
            yield Error(
                where,
                _finite_or_inf(np.abs(difference).max()),
                _finite_or_inf(np.sqrt(np.mean(difference**2))),
                bool(is_best),
            )


def _finite_or_inf(x: Any) -> float:
    return float(x) if np.isfinite(x) else float("inf")


def unsharded(plan: Plan, mesh: Mesh, context: int) -> Engine:
    """Return a decode engine for the plan's model on this mesh in which every mesh axis is idle: all is replicated."""
    work = Workload(phase="decode", batches=(plan.padded_batch,), context=context, dtypes=plan.dtypes)
    idle = (IDLE,) * len(plan.mesh.axis_names)
    assigned = [
        Assigned(c, next(b for b in c.bodies if not b.parts[0].program.requires), idle)
        for c in components(plan.model, work)
    ]
    layout = lay_out(plan.mesh, idle, assigned)
    return engine(layout, plan.model, work, mesh)


def _judge(plan: Plan, mode: str, errors: Sequence[Error]) -> Level:
    dtype = plan.dtypes.weights
    bound, exact = BOUNDS[dtype], dtype == "f32"
    median = float(np.median([e.rms for e in errors]))
    failing = [e for e in errors if e.largest > bound] if exact else [e for e in errors if median > bound]
    findings = [_finding(e, bound, exact) for e in failing[:_SHOWN]]
    findings += [_token_finding(e) for e in errors if not e.token][:_SHOWN]
    if len(failing) > _SHOWN:
        findings.append(Finding(what="logits", promised="equal those of the reference", found=f"{len(failing)} differ"))
    worst = max(e.largest for e in errors)
    note = (
        f"{dtype}: logits of {len(errors)} tokens against the unsharded reference: at most {worst:.1e} of their "
        f"standard deviation off, median root mean square {median:.1e} (bound {bound:g} on the "
        f"{'largest' if exact else 'median'})"
    )
    return verdict("numerics", mode, len(errors), tuple(findings), (note,))


def _finding(error: Error, bound: float, exact: bool) -> Finding:
    return Finding(
        what=f"logits of {error.where}",
        promised=f"within {bound:g} standard deviations of the reference",
        found=f"{error.largest if exact else error.rms:.3g}",
    )


def _token_finding(error: Error) -> Finding:
    return Finding(what=f"token of {error.where}", promised="the one with the largest logit", found="another")
