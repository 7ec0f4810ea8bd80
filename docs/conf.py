"""The site of docs/: `sphinx-build -W --keep-going -b html docs build/site`."""

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

project = "meshwright"
extensions = ["myst_parser", "sphinxcontrib.mermaid"]
html_theme = "furo"
html_title = "meshwright"
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
exclude_patterns = ["conf.py"]
highlight_language = "none"


def setup(app: Sphinx) -> None:
    """Leave the languages that Pygments does not know as they are."""
    app.add_lexer("layout", TextLexer)
    app.add_lexer("ebnf", TextLexer)
