"""Level `numerics`: the plan's programs, run on host devices, give what the unsharded reference gives.

A plan of decode starts from an empty cache; its sequences begin one after the other, so that they are of different
length, and the last 16 steps run all of them, up to the cache's last slot. A plan of prefill reads prompts of
different length; their caches are inserted into an engine of decode without sharding, which goes on for 16 steps.
Every step's logits are compared: the largest difference over the standard deviation of the reference's logits.

Both sides round: in float32 each is about 4e-6 off, so the bound 1e-5 holds whatever the order of the sums. In
bf16 (2^-8 per rounding) one token can be far off where a router's or a softmax's decision turns, so that the bound
is on the median over tokens of the root mean square.
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
"""By dtype, the largest error of a token's logits (f32), or of the median token's (bf16), in standard deviations."""
_SHOWN = 5


def numerics(loaded: Loaded, options: LevelOptions = MANUAL) -> Level:
    """The level of a plan, on its shrunken copy in float32."""
    check_supported(loaded.plan)
    small = shrink(loaded, F32)
    return run_numerics(small, host_mesh(small), options.mode, engine_of)


def run_numerics(loaded: Loaded, mesh: Mesh, mode: str, make: MakeEngine) -> Level:
    """The level of a plan that is small enough to run as it is, in float32 or bf16."""
    plan = loaded.plan
    try:
        run = _Run(plan, make(loaded, mesh))
        errors = [*run.decode()] if plan.phase == "decode" else [*run.prefill()]
    except Exception as error:  # a program that cannot be run is a finding, whatever it raises
        if lost_others(error):
            raise Unavailable(f"the processes lost each other: {first_line(error)}") from None
        return verdict("numerics", mode, 1, (raised(failed_step(error) or "the step", "runs", error),))
    return _judged(plan, mode, errors)


@dataclass(frozen=True)
class Error:
    """One token's logits against the reference's, in standard deviations: where, the largest, the mean square's root.

    `token`: whether the best token was chosen, or one that is as good within the bound.
    """

    where: str
    largest: float
    rms: float
    token: bool


@dataclass(frozen=True)
class _Run:
    plan: Plan
    engine: Any

    @property
    def _params(self) -> Params:
        dtype = jnp.bfloat16 if self.plan.dtypes.weights == "bf16" else jnp.float32
        return random_params(self.plan.model, jax.random.key(0), dtype)

    def decode(self) -> Iterator[Error]:
        """Sequences that begin one after the other; before its begin a sequence repeats its first token."""
        B, steps = self.plan.padded_batch, self.plan.context
        begins = np.linspace(0, max(0, steps - STEPS), B).astype(int)
        tokens, wanted = self._reference(B, steps)
        weights, cache = self.engine.place(self._params), self.engine.init_cache()
        for step in range(steps):
            at = np.maximum(0, step - begins)
            chosen, logits, cache = self.engine.generate(weights, cache, tokens[np.arange(B), at], at, logits=True)
            yield from self._errors(f"decode step {step}", at, wanted, chosen, logits)

    def prefill(self) -> Iterator[Error]:
        """Prompts of different length, then what comes next, through caches in other places of the batch."""
        B, T = self.plan.padded_batch, self.plan.context
        lengths, places = np.linspace(T, 1, B).astype(int), np.roll(np.arange(B), 1)
        tokens, wanted = self._reference(B, T + STEPS)
        params = self._params
        placed = self.engine.place(params)
        chosen, logits, prompts = self.engine.prefill(placed, tokens[:, :T], lengths, logits=True)
        yield from self._errors("prefill", lengths - 1, wanted, chosen, logits)
        follow = unsharded(self.plan, self.engine.mesh, T + STEPS)
        weights, cache = follow.place(params), follow.insert(follow.init_cache(), prompts, places)
        back = np.argsort(places)
        for step in range(STEPS):
            at = lengths + step
            last = tokens[np.arange(B), at][back], at[back]
            chosen, logits_, cache = follow.generate(weights, cache, *last, logits=True)
            ours = fetch(chosen)[places], fetch(logits_)[places]
            yield from self._errors(f"step {step} after prefill", at, wanted, *ours)

    def _reference(self, B: int, T: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        tokens = np.random.default_rng(0).integers(0, self.plan.model.V, (B, T))
        return tokens, np.asarray(reference_logits(self.plan.model, self._params, jnp.asarray(tokens)))

    def _errors(
        self, what: str, at: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], chosen: Any, logits: Any
    ) -> Iterator[Error]:
        bound, scale = BOUNDS[self.plan.dtypes.weights], wanted.std()
        computed = fetch(logits).astype(np.float32)[:, : wanted.shape[-1]]
        for b, token in enumerate(fetch(chosen)):
            right = wanted[b, at[b]]
            off = (computed[b] - right) / scale
            best = 0 <= token < len(right) and right[token] >= right.max() - 2 * scale * max(bound, abs(off).max())
            where = f"{what}, sequence {b}, position {at[b]}"
            yield Error(where, _number(np.abs(off).max()), _number(np.sqrt(np.mean(off**2))), bool(best))


def _number(x: Any) -> float:
    return float(x) if np.isfinite(x) else float("inf")


def unsharded(plan: Plan, mesh: Mesh, context: int) -> Engine:
    """An engine of decode in which every mesh axis idles."""
    work = Workload(phase="decode", batches=(plan.padded_batch,), context=context, dtypes=plan.dtypes)
    idle = (IDLE,) * len(plan.mesh.axis_names)
    assigned = [
        Assigned(c, next(b for b in c.bodies if not b.parts[0].program.requires), idle)
        for c in components(plan.model, work)
    ]
    layout = lay_out(plan.mesh, idle, assigned)
    return engine(layout, plan.model, work, mesh)


def _judged(plan: Plan, mode: str, errors: Sequence[Error]) -> Level:
    dtype = plan.dtypes.weights
    bound, exact = BOUNDS[dtype], dtype == "f32"
    median = float(np.median([e.rms for e in errors]))
    bad = [e for e in errors if e.largest > bound] if exact else [e for e in errors if median > bound]
    findings = [_finding(e, bound, exact) for e in bad[:_SHOWN]]
    findings += [_of_token(e) for e in errors if not e.token][:_SHOWN]
    if len(bad) > _SHOWN:
        findings.append(Finding(what="logits", promised="equal those of the reference", found=f"{len(bad)} differ"))
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


def _of_token(error: Error) -> Finding:
    return Finding(what=f"token of {error.where}", promised="the one with the largest logit", found="another")
