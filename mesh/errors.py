"""The one exception that a user's input can cause."""


class InputError(ValueError):
    """Bad input: one line that names the value, what was expected and what would work."""
