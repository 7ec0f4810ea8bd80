"""Word numbers and errors for findings and notes."""

from __future__ import annotations


def gb(nbytes: float) -> str:
    """Return bytes in words, in GB (1e9 bytes).

    >>> gb(16.9e9)
    '16.9000 GB'
    """
    return f"{nbytes / 1e9:.4f} GB"


def ms(seconds: float) -> str:
    """Return seconds in words, in milliseconds.

    >>> ms(0.01234)
    '12.3 ms'
    """
    return f"{seconds * 1e3:.3g} ms"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or the name of its type if it has no text.

    >>> first_line(ValueError("no such thing\\nand more")), first_line(ValueError())
    ('no such thing', 'ValueError')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]
