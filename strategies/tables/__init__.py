"""The cost reader over many assignments of mesh axes at once."""
