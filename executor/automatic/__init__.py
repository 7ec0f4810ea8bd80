"""The automatic mode: the plan's step as plain code under `jax.jit` with constraints, and a judge of XLA's choices."""
