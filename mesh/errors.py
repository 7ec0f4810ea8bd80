"""The errors that meshwright raises on purpose; each is one line that can be shown to a user as it is."""

from __future__ import annotations


class MeshwrightError(Exception):
    """Base of the errors that meshwright raises on purpose: catch it to catch them all."""


class InputError(MeshwrightError, ValueError):
    """Bad input: one line that names the value, what was expected and what would work.

    `field`: the argument that is wrong, where the line begins with its name. The command line puts the option of that
    argument in its place.
    """

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field
