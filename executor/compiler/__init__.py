"""Compiled programs: compiling for a slice, reading HLO text, and comparing its collectives with the priced ones."""
