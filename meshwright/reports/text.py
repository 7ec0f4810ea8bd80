"""Text for people: blocks (tables and lines) as plain text of a width, as Markdown, or as HTML."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

WIDTH = 100
"""Columns of plain text where nothing else is known, and of running text at the most."""
_NUMBER = re.compile(r"[-+]?[\d,]+(\.\d+)?(e[-+]?\d+)?%?|-|")
_BRACKETS = re.compile(r"\[[^]]*\]( \{[^}]*\})?")
"""A tensor's dims and its partial sum, which no line breaks."""
_NO_BREAK = "\xa0"
_GAP = 2
_BROAD = 24
"""Columns broader than this go beneath their rows before the last ones do."""
_BOLD = "\x1b[1m{}\x1b[0m"


@dataclass(frozen=True)
class Lines:
    """A heading and lines of text; code is in backticks. Lines longer than the width are wrapped."""

    heading: str
    lines: Sequence[str]


@dataclass(frozen=True)
class TextTable:
    """A heading and rows of cells, each row with `notes`: lines of text that stand beneath it.

    Plain text has the columns in `beneath` under their rows, and others too where a table is wider than the text:
    broad ones first, then the last. Columns in `wide` are shown in the style `wide` alone, which has no notes and no
    limit of width. Columns in `code` are in the book's notation, which Markdown must not read as its own. Markdown and
    HTML show the notes as a last column, `layout`.
    """

    heading: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    code: frozenset[int] = frozenset()
    notes: Sequence[Sequence[str]] = ()
    beneath: frozenset[int] = frozenset()
    wide: frozenset[int] = frozenset()


Block = Lines | TextTable


def render(blocks: Sequence[Block], style: str, width: int = WIDTH, bold: bool = False) -> str:
    """Return the blocks as text with a final newline.

    `style`: `table` (plain text of at most `width` columns), `wide` (plain text without a limit, with exact letters
    for words), `markdown` or `html`. `bold`: headings are set bold, as terminals understand it.
    """
    shown = [_columns_of(block, style) if isinstance(block, TextTable) else block for block in blocks]
    return "\n\n".join(_block(block, style, width, bold) for block in shown if _has_content(block)) + "\n"


def _columns_of(table: TextTable, style: str) -> TextTable:
    """Return the table with the columns of the style, and its notes where that has none beneath rows."""
    notes = table.notes
    if style == "wide":
        return replace(table, notes=(), wide=frozenset())
    kept = [i for i in range(len(table.headers)) if i not in table.wide]
    narrow = _of_columns(table, kept)
    if style == "table" or not notes:
        return narrow
    rows = [[*row, "; ".join(lines)] for row, lines in zip(narrow.rows, notes, strict=True)]
    return replace(narrow, headers=[*narrow.headers, "layout"], rows=rows, notes=())


def _of_columns(table: TextTable, columns: Sequence[int]) -> TextTable:
    return replace(
        table,
        headers=[table.headers[i] for i in columns],
        rows=[[row[i] for i in columns] for row in table.rows],
        code=frozenset(new for new, old in enumerate(columns) if old in table.code),
        beneath=frozenset(new for new, old in enumerate(columns) if old in table.beneath),
        wide=frozenset(),
    )


def _has_content(block: Block) -> bool:
    return bool(block.rows if isinstance(block, TextTable) else block.lines)


_HEADINGS = {"markdown": "## {}\n\n", "html": "<h4>{}</h4>\n"}


def _block(block: Block, style: str, width: int, bold: bool) -> str:
    text = _wrapped(block.heading, "", width) if style == "table" and block.heading else block.heading
    text = escape(text) if style == "html" else _BOLD.format(text) if bold else text
    heading = _HEADINGS.get(style, "{}\n").format(text) if block.heading else ""
    if isinstance(block, Lines):
        return heading + _lines(block, style, width)
    return heading + (_fitted(block, width) if style == "table" else _table(block, style))


def _lines(block: Lines, style: str, width: int) -> str:
    if style == "html":
        return "<br>".join(map(escape, block.lines))
    if style == "markdown":
        return "\n".join(f"- {line}" for line in block.lines)
    indent = "  " if block.heading else ""
    if style == "wide":
        return "\n".join(indent + line for line in block.lines)
    return "\n".join(_wrapped(line, indent, width) for line in block.lines)


def _wrapped(line: str, indent: str, width: int) -> str:
    """Return a line over as many lines as it takes; what follows the first is set in by four more."""
    kept = _BRACKETS.sub(lambda match: match[0].replace(" ", _NO_BREAK), line)
    return textwrap.fill(
        kept,
        min(width, WIDTH),
        initial_indent=indent,
        subsequent_indent=indent + "    ",
        break_long_words=False,
        break_on_hyphens=False,
    ).replace(_NO_BREAK, " ")


def _fitted(table: TextTable, width: int) -> str:
    """Return the table in at most `width` columns: broad ones, then the last, stand beneath their rows if need be."""
    beneath = list(table.beneath)
    columns = [i for i in range(len(table.headers)) if i not in table.beneath]
    while len(columns) > 1 and _width(table, columns) > width:
        widest = max(columns[1:], key=lambda i: (_column_width(table, i), i))
        moved = widest if _column_width(table, widest) > _BROAD else columns[-1]
        columns.remove(moved)
        beneath.append(moved)
    if _width(table, columns) > width:
        return "\n".join(_record(table, number, width) for number in range(len(table.rows)))
    lines = _table(_of_columns(table, columns), "table").splitlines()
    notes = [_notes(table, number, sorted(beneath), width) for number in range(len(table.rows))]
    if not any(notes):
        return "\n".join(lines)
    heads, rows = lines[:2], lines[2:]
    return "\n".join([*heads, *(line for row, below in zip(rows, notes, strict=True) for line in (row, *below))])


def _record(table: TextTable, number: int, width: int) -> str:
    """Return a row as running text, where not even its first column has place in a line."""
    first, *rest = range(len(table.headers))
    return "\n".join([_wrapped(table.rows[number][first], "", width), *_notes(table, number, rest, width)])


def _notes(table: TextTable, number: int, columns: Sequence[int], width: int) -> list[str]:
    """Return what stands beneath a row: the cells of columns that had no place in it, then its notes."""
    first_code = min(table.code, default=None)
    cells = [("" if i == first_code else table.headers[i], table.rows[number][i]) for i in columns]
    said = "; ".join(f"{header}: {cell}" if header else cell for header, cell in cells if cell)
    texts = [said, *(table.notes[number] if table.notes else ())]
    return [_wrapped(text, " " * 6, width) for text in texts if text]


def _column_width(table: TextTable, column: int) -> int:
    return max(len(cell) for cell in (table.headers[column], *(row[column] for row in table.rows)))


def _width(table: TextTable, columns: Sequence[int]) -> int:
    return sum(_column_width(table, i) for i in columns) + _GAP * (len(columns) - 1)


def _table(table: TextTable, style: str) -> str:
    from tabulate import tabulate  # loaded only when a table is printed

    markdown, aligned = style == "markdown", [_alignment(table.rows, i) for i in range(len(table.headers))]
    headers = [_cell(header, markdown, False) for header in table.headers]
    rows = [[_cell(cell, markdown, i in table.code) for i, cell in enumerate(row)] for row in table.rows]
    if style in ("markdown", "html"):
        tablefmt = {"markdown": "pipe", "html": "html"}[style]
        return tabulate(rows, headers=headers, tablefmt=tablefmt, disable_numparse=True, colalign=aligned)
    # as rows, for headers are given two columns more than they need
    text = tabulate([headers, *rows], tablefmt="plain", disable_numparse=True, colalign=aligned)
    header, *lines = text.splitlines()
    rule = (" " * _GAP).join("-" * _column_width(table, i) for i in range(len(headers)))
    return "\n".join(line.rstrip() for line in (header, rule, *lines))


def _cell(text: str, markdown: bool, code: bool) -> str:
    if not markdown:
        return text
    escaped = text.replace("|", "\\|")
    return f"`{escaped}`" if code and text else escaped


def _alignment(rows: Sequence[Sequence[str]], column: int) -> str:
    return "right" if all(_NUMBER.fullmatch(row[column]) for row in rows) else "left"
