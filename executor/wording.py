"""Texts of numbers and errors in findings and notes."""

from __future__ import annotations


def gb(nbytes: float) -> str:
    """Bytes in GB (1e9).

    >>> gb(16.9e9)
    '16.9000 GB'
    """
    return f"{nbytes / 1e9:.4f} GB"


def ms(seconds: float) -> str:
    """Seconds in milliseconds.

    >>> ms(0.01234)
    '12.3 ms'
    """
    return f"{seconds * 1e3:.3g} ms"


def first_line(error: BaseException) -> str:
    """The first line of an error's text; of one without text its type's name.

    >>> first_line(ValueError("no such thing\\nand more")), first_line(ValueError())
    ('no such thing', 'ValueError')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]
