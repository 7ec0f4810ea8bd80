"""Layouts in words: how many devices cut what, in the order of the mesh axes, and back from the words to the roles.

A role of the notation names what a mesh axis cuts of a component's weights and, after a plus, of its KV cache or of
its tokens. In words, with the devices of the axis:

    attention   N+K over 4, -+B over 2     heads 4 x batch 2 · KV: KV heads 4, batch 2
    MLP         F over 8, D over 2         2D weight-stationary: d_ff 8 x d_model 2
    MoE         E+B over 8                 experts/batch 8
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strategies.components import IDLE
from strategies.layout import ComponentLayout, MeshAxes, has_cache

Cut = tuple[str, int]
"""A role of the notation, and over how many devices it holds."""

WEIGHTS = {
    "N": "heads",
    "D": "d_model",
    "ND": "heads/d_model",
    "F": "d_ff",
    "E": "experts",
    "V": "vocabulary",
}
"""Words for what is cut of the weights, by its letters in a role."""
CACHE = {"K": "KV heads", "M": "query groups", "B": "batch", "S": "sequence", "T": "tokens", "-": "copies"}
"""Words for what is cut of the KV cache (in other components: of the tokens), by its letters in a role."""
PARALLEL = {"-+B": "data parallel", "-+T": "sequence parallel"}
"""Words for roles that cut no weights, in components without a KV cache."""
GATHERED = "gathered "
_KV = " · KV: "
_LETTERS = {word: letters for letters, word in (WEIGHTS | CACHE).items()}
_PARALLEL_ROLES = {word: role for role, word in PARALLEL.items()}

MEANINGS = {
    "heads": "WQ and WO are cut by query heads N",
    "d_model": "weights are cut along D, the model width",
    "heads/d_model": "WQ and WO are cut by heads N, WK and WV along D",
    "d_ff": "weights of the MLP are cut along F, its width",
    "experts": "each device has some of the experts E",
    "vocabulary": "embedding and unembedding are cut along V",
    "batch": "each device has some of the sequences B",
    "tokens": "each device has some of each prompt's tokens T",
    "KV heads": "the KV cache is cut by KV heads K",
    "query groups": "KV heads are copied, and the query heads of each are cut",
    "sequence": "the KV cache is cut along its length S",
    "copies": "each device has a copy of the KV cache",
    "data parallel": "weights are copied, sequences are cut",
    "sequence parallel": "weights are copied, each prompt's tokens are cut",
    "gathered": "weights are stored cut, and gathered before use",
    "idle": "the devices of the axis do the same work",
}
"""The meaning of each word, for the legend of a table."""


def in_words(cuts: Sequence[Cut], cached: bool) -> str:
    """Return the roles of a component in words; `cached`: it has a KV cache, as attention and parallel blocks have.

    >>> in_words([("N+K", 4), ("-+B", 2)], cached=True)
    'heads 4 x batch 2 · KV: KV heads 4, batch 2'
    >>> in_words([("F", 8), ("D", 2)], cached=False)
    '2D weight-stationary: d_ff 8 x d_model 2'
    >>> in_words([], cached=False)
    'whole on every device'
    """
    if not cuts:
        return "whole on every device"
    weights = " x ".join(f"{_weights_word(role, cached)} {ways}" for role, ways in cuts)
    cache = ", ".join(f"{_cache_word(role)} {ways}" for role, ways in cuts if role != IDLE) if cached else ""
    return f"{_family([role for role, _ in cuts])}{weights}{_KV if cache else ''}{cache}"


def _weights_word(role: str, cached: bool) -> str:
    if role == IDLE:
        return "idle"
    if not cached and role in PARALLEL:
        return PARALLEL[role]
    letters, _, cut = role.partition("+")
    if letters == "-":
        return CACHE.get(cut, cut) if cached else f"-/{CACHE.get(cut, cut)}"
    word = (GATHERED if letters.endswith("*") else "") + WEIGHTS.get(letters.rstrip("*"), letters.rstrip("*"))
    return f"{word}/{CACHE.get(cut, cut)}" if cut and not cached else word


def _cache_word(role: str) -> str:
    cut = role.partition("+")[2]
    return CACHE.get(cut, cut)


def _family(roles: Sequence[str]) -> str:
    """Return the chapter's name of how an MLP's weights are cut, where it has one."""
    if any(role.startswith(("D*", "F*")) for role in roles):
        return "weight-gathered: "
    stationary = {"D", "F"} & set(roles)
    return f"{len(stationary)}D weight-stationary: " if stationary and not any(r.startswith("E") for r in roles) else ""


def out_of_words(words: str) -> list[Cut]:
    """Return the roles that words of `in_words` say; raises `ValueError` where they say none.

    >>> out_of_words("heads 4 x batch 2 · KV: KV heads 4, batch 2")
    [('N+K', 4), ('-+B', 2)]
    >>> out_of_words("2D weight-stationary: d_ff 8 x d_model 2")
    [('F', 8), ('D', 2)]
    """
    weights, cached, cache = words.partition(_KV)
    weights = weights.rpartition("weight-stationary: ")[2].rpartition("weight-gathered: ")[2]
    if weights == "whole on every device":
        return []
    entries = [_entry(text) for text in weights.split(" x ")]
    cuts = iter([_entry(text) for text in cache.split(", ")] if cached else [])
    return [(_role(word, next(cuts)[0] if cached and word != "idle" else None), ways) for word, ways in entries]


def _entry(text: str) -> Cut:
    word, _, ways = text.rpartition(" ")
    return word, int(ways)


def _role(word: str, cut: str | None) -> str:
    if word == "idle":
        return IDLE
    if word in _PARALLEL_ROLES:
        return _PARALLEL_ROLES[word]
    if cut is None and word not in _LETTERS:
        word, slash, tokens = word.rpartition("/")
        word, cut = (word, tokens) if slash else (tokens, None)
    star = "*" if word.startswith(GATHERED) else ""
    name = word.removeprefix(GATHERED)
    if not cut:
        return _LETTERS.get(name, name) + star
    letters = "-" if word == cut else _LETTERS.get(name, name) + star
    return f"{letters}+{_LETTERS.get(cut, cut)}"


def layout_words(layout: ComponentLayout, mesh: MeshAxes) -> str:
    """Return a component's roles in words, those of most devices first, idle axes last."""
    return in_words(layout.cuts_over(mesh), layout.cached)


def letters_in_words(component: str, text: str) -> str:
    """Return `ComponentLayout.roles_over`'s text in words, the program before it where that was named.

    >>> letters_in_words("attention", "N+K 4, -+B 2")
    'heads 4 x batch 2 · KV: KV heads 4, batch 2'
    >>> letters_in_words("mlp", "mlp-column F 4, idle 2")
    'mlp-column: 1D weight-stationary: d_ff 4 x idle 2'
    """
    program, _, rest = text.partition(" ")
    named = bool(rest) and not rest.partition(",")[0].isdecimal()
    roles = rest if named else text
    cuts = [] if roles == "whole" else [_entry(entry) for entry in roles.split(", ")]
    words = in_words([(IDLE if role == "idle" else role, ways) for role, ways in cuts], has_cache(component))
    return f"{program}: {words}" if named else words


def legend(words: Iterable[str]) -> list[str]:
    """Return the meanings of the words that are used in some layouts, each once, in the order of `MEANINGS`."""
    used = " ".join(words)
    spoken = {word for part in used.split("·") for word in _spoken(part)}
    return [f"{word}: {meaning}" for word, meaning in MEANINGS.items() if word in spoken]


def _spoken(part: str) -> Iterable[str]:
    """Yield the words of `MEANINGS` in a text, a longer one before those within it."""
    for word in sorted(MEANINGS, key=len, reverse=True):
        if word in part:
            yield word
            part = part.replace(word, "")
