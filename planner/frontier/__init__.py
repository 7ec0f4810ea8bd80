"""Find the Pareto front of latency, throughput and cost over slices and batches (`pareto`)."""
