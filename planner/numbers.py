"""Format numbers for messages and tables, with few digits and in readable units."""

from __future__ import annotations

GB = 1e9


def digits(value: float, most: int = 4) -> str:
    """Return a number with `most` significant digits, a larger one as a whole number; `-` for 0.

    Between 1e-4 and 1e15 it is never in scientific form.

    >>> digits(15.96631), digits(0.0123456), digits(53121318912), digits(0)
    ('15.97', '0.01235', '53,121,318,912', '-')
    """
    if value == 0:
        return "-"
    if abs(float(f"{value:.{most}g}")) >= 10 ** (most - 1):
        return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.{most - 1}e}"
    return f"{value:#.{most}g}".rstrip(".") if abs(value) >= 1e-4 else f"{value:.{most - 1}e}"


def ms(seconds: float) -> str:
    """Return seconds as text in milliseconds, without the unit.

    >>> ms(0.0123)
    '12.30'
    """
    return digits(seconds * 1e3)


def us(seconds: float) -> str:
    """Return seconds as text in microseconds, without the unit.

    >>> us(1.5e-6)
    '1.500'
    """
    return digits(seconds * 1e6)


def gb(nbytes: float) -> str:
    """Return bytes as text in GB of 1e9 bytes, with two decimals and without the unit.

    >>> gb(16911433728)
    '16.91'
    """
    return f"{nbytes / GB:,.2f}"
