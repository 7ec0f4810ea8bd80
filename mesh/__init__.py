"""Hardware: chips, slices, torus pieces, and the seconds a collective takes."""
