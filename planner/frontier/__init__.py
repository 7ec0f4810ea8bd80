"""`pareto`: what no other slice and batch beats."""
