"""Compare predictions with published measurements (`validate`)."""
