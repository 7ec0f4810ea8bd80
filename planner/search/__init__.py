"""Search the layouts of one slice, and prove the best ones by exhaustion."""
