"""The command `glossary`."""

from __future__ import annotations

from meshwright.commandline import Argument, command
from meshwright.options import format_of
from meshwright.output import show


@command(Argument("word", "[WORD]", "Show this one, or those that have it in them.", required=False), *format_of())
def glossary(*, word: str | None, style: str) -> None:
    """Print the words that tables, messages and docs use, each with its one meaning.

    \b
    meshwright glossary TTFT
    """
    from meshwright.glossary import report, terms_of

    terms = terms_of(word)
    show(terms, lambda: report(terms), style)
