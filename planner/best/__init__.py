"""The best layouts of every slice and batch: the sweep, the ranking, and why nothing fits."""
