"""Text for people: blocks (tables and lines) as plain text or Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_NUMBER = re.compile(r"[-+]?[\d,]+(\.\d+)?(e[-+]?\d+)?%?|-|")


@dataclass(frozen=True)
class Lines:
    """A heading and lines of text; code is in backticks."""

    heading: str
    lines: Sequence[str]


@dataclass(frozen=True)
class TextTable:
    """A heading and rows; `code`: columns in the book's notation, which Markdown must not read as its own."""

    heading: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    code: frozenset[int] = frozenset()


Block = Lines | TextTable


def render(blocks: Sequence[Block], style: str) -> str:
    """The blocks as plain text (`table`), `markdown` or `html`, with a final newline."""
    return "\n\n".join(_block(block, style) for block in blocks if _has_content(block)) + "\n"


def _has_content(block: Block) -> bool:
    return bool(block.rows if isinstance(block, TextTable) else block.lines)


_HEADINGS = {"markdown": "## {}\n\n", "html": "<h4>{}</h4>\n"}


def _block(block: Block, style: str) -> str:
    text = escape(block.heading) if style == "html" else block.heading
    heading = _HEADINGS.get(style, "{}\n").format(text) if text else ""
    return heading + (_table(block, style) if isinstance(block, TextTable) else _lines(block, style))


def _lines(block: Lines, style: str) -> str:
    if style == "html":
        return "<br>".join(map(escape, block.lines))
    if style == "markdown":
        return "\n".join(f"- {line}" for line in block.lines)
    return "\n".join(f"  {line}" if block.heading else line for line in block.lines)


def _table(block: TextTable, style: str) -> str:
    from tabulate import tabulate  # loaded only when a table is printed

    markdown = style == "markdown"
    rows = [[_cell(cell, markdown, i in block.code) for i, cell in enumerate(row)] for row in block.rows]
    return tabulate(
        rows,
        headers=[_cell(header, markdown, False) for header in block.headers],
        tablefmt={"markdown": "pipe", "html": "html"}.get(style, "simple"),
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
