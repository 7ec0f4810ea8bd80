"""What is asked: model, slices, workload, targets, prices, as one checked value."""
