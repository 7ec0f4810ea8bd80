"""Does it really do that: running and compiling a plan."""
