"""Text for people: blocks (tables and lines) as plain text or Markdown, and numbers with few digits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

GB = 1e9
_NUMBER = re.compile(r"[-+]?[\d,]+(\.\d+)?(e[-+]?\d+)?%?|-|")


@dataclass(frozen=True)
class Lines:
    """A heading and lines of text; code is in backticks."""

    heading: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Table:
    """A heading and rows; `code`: columns in the book's notation, which Markdown must not read as its own."""

    heading: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    code: frozenset[int] = frozenset()


Block = Lines | Table


def render(blocks: Sequence[Block], style: str) -> str:
    """The blocks as plain text (`table`) or `markdown`, with a final newline."""
    return "\n\n".join(_block(block, style) for block in blocks if _has_content(block)) + "\n"


def _has_content(block: Block) -> bool:
    return bool(block.rows if isinstance(block, Table) else block.lines)


def _block(block: Block, style: str) -> str:
    heading = (f"## {block.heading}\n\n" if style == "markdown" else f"{block.heading}\n") if block.heading else ""
    return heading + (_table(block, style) if isinstance(block, Table) else _lines(block, style))


def _lines(block: Lines, style: str) -> str:
    if style == "markdown":
        return "\n".join(f"- {line}" for line in block.lines)
    return "\n".join(f"  {line}" if block.heading else line for line in block.lines)


def _table(block: Table, style: str) -> str:
    from tabulate import tabulate  # loaded only when a table is printed

    markdown = style == "markdown"
    rows = [[_cell(cell, markdown, i in block.code) for i, cell in enumerate(row)] for row in block.rows]
    return tabulate(
        rows,
        headers=[_cell(header, markdown, False) for header in block.headers],
        tablefmt="pipe" if markdown else "simple",
        disable_numparse=True,
        colalign=[_alignment(block.rows, i) for i in range(len(block.headers))],
    )


def _cell(text: str, markdown: bool, code: bool) -> str:
    if not markdown:
        return text
    escaped = text.replace("|", "\\|")
    return f"`{escaped}`" if code and text else escaped


def _alignment(rows: Sequence[Sequence[str]], column: int) -> str:
    return "right" if all(_NUMBER.fullmatch(row[column]) for row in rows) else "left"


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
