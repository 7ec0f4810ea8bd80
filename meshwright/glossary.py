"""The words that tables, messages and docs use, each with its one meaning, as `glossary.toml` has them."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TypedDict

from mesh.errors import InputError
from meshwright.reports.text import Block, Lines

FILE = Path(__file__).with_name("glossary.toml")


class Term(TypedDict, total=False):
    """A word of the field, the symbol that the book has for it, and its one meaning here."""

    word: str
    symbol: str
    meaning: str


def all_terms() -> list[Term]:
    """Return every term, sorted by its word."""
    terms: list[Term] = tomllib.loads(FILE.read_text("utf-8"))["term"]
    return sorted(terms, key=lambda term: term["word"].lower())


def terms_of(word: str | None) -> list[Term]:
    """Return the terms with this word or symbol, or else those whose words have it in them; all terms of None.

    Raises `InputError` with the closest words where there is none.
    """
    terms = all_terms()
    if word is None:
        return terms
    asked = word.strip().lower()
    exact = [term for term in terms if asked == term["word"].lower() or word.strip() == term.get("symbol")]
    matches = exact or [term for term in terms if asked and asked in term["word"].lower()]
    if matches:
        return matches
    close = get_close_matches(asked, [term["word"].lower() for term in terms])
    hint = f"closest: {', '.join(close)}" if close else "`meshwright glossary` lists all"
    raise InputError(f"{word!r} is not in the glossary; {hint}")


def report(terms: Sequence[Term]) -> Sequence[Block]:
    """Return one line per term: its word, its symbol and its meaning."""
    return [Lines("", [_line(term) for term in terms])]


def _line(term: Term) -> str:
    symbol = f" ({term['symbol']})" if "symbol" in term else ""
    return f"{term['word']}{symbol}: {term['meaning']}"
