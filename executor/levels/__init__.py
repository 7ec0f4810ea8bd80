"""The levels of `verify`: each checks one claim of a plan and returns its findings."""
