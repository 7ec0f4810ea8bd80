"""The levels of `verify`: each tries one promise of a plan and returns its findings."""
