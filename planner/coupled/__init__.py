"""The second proof: the same choice as a CP-SAT model, and pairs of layouts that share their weights."""
