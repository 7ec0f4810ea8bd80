"""Run and compile a plan, and check that it does what it states; the only package that needs jax."""
