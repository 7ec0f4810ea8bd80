"""Several processes that verify one plan together: how they join, agree and end."""
