"""One verification by several processes: how they join, agree and end."""
