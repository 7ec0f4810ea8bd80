"""Describe a question to the planner as one checked value: model, slices, workload, targets, prices."""
