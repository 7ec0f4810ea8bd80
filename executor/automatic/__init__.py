"""The automatic mode: the plan's step under `jit` with its constraints, and what XLA makes of it."""
