"""Prove a choice a second time, by CP-SAT: one slice and batch, or a pair of layouts that share their weights."""
