"""Models: their shapes from a config, the workload of a step, and dtypes."""
