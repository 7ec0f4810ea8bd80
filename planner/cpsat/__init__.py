"""The second proof, by CP-SAT: one slice and batch, or a pair of layouts that share their weights."""
