"""Layouts as programs: the notation, the models that are laid out, and the readers of a program."""
