"""Numbers in messages and tables: few digits, and the units that people read."""

from __future__ import annotations

GB = 1e9


def digits(value: float, most: int = 4) -> str:
    """A number with `most` significant digits, never in scientific form between 1e-4 and 1e15; `-` for 0.

    >>> digits(15.96631), digits(0.0123456), digits(53121318912), digits(0)
    ('15.97', '0.01235', '53,121,318,912', '-')
    """
    if value == 0:
        return "-"
    if abs(float(f"{value:.{most}g}")) >= 10 ** (most - 1):
        return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.{most - 1}e}"
    return f"{value:#.{most}g}".rstrip(".") if abs(value) >= 1e-4 else f"{value:.{most - 1}e}"


def ms(seconds: float) -> str:
    """Milliseconds."""
    return digits(seconds * 1e3)


def us(seconds: float) -> str:
    """Microseconds."""
    return digits(seconds * 1e6)


def gb(nbytes: float) -> str:
    """GB of 1e9 bytes, to 10 MB.

    >>> gb(16911433728)
    '16.91'
    """
    return f"{nbytes / GB:,.2f}"
