"""The question as one checked value: model, slices, workload, targets, prices."""
