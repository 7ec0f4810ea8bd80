"""Greedy decoding by the plain reference model, which recomputes the whole sequence for each token."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from executor.reference import Params, reference_logits
from strategies.models.models import Model


def reference_decode(
    model: Model,
    params: Params,
    tokens: jax.Array,
    steps: int,
    *,
    lengths: jax.Array | None = None,
    rope_theta: float = 10000.0,
    eps: float = 1e-5,
) -> tuple[jax.Array, jax.Array]:
    """The greedy continuation: new tokens `[B, steps]` and the logits `[B, steps, V]` that chose them.

    `lengths` `[B]`: tokens of each prompt, where they differ; what stands behind them in `tokens` is ignored.
    The last new token is chosen but not run.
    """
    B, T = tokens.shape
    rows, ends = jnp.arange(B), jnp.full(B, T) if lengths is None else lengths
    tokens = jnp.pad(tokens, ((0, 0), (0, steps)))
    seen, chosen = [], []
    for step in range(steps):
        logits = reference_logits(model, params, tokens, rope_theta=rope_theta, eps=eps)
        seen.append(logits[rows, ends + step - 1])  # [B, V]
        chosen.append(jnp.argmax(seen[-1], axis=-1).astype(tokens.dtype))
        tokens = tokens.at[rows, ends + step].set(chosen[-1])
    return jnp.stack(chosen, axis=1), jnp.stack(seen, axis=1)
