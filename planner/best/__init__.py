"""Find the best layouts of every slice and batch: the sweep, the ranking, and reasons why nothing fits."""
