"""The best layouts of one slice, proved by exhaustion."""
