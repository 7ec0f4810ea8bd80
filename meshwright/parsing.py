"""How the text of options is read: lists, numbers, choices and `--fix`; one clear line where it is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from mesh.errors import InputError

_WHOLE = re.compile(r"[+-]?[0-9]+")
_MOST_DIGITS = 18


def words(option: str, texts: Sequence[str]) -> tuple[str, ...]:
    """The values of an option that repeats or takes commas, in order, without repetitions.

    >>> words("--slice", ["v5e:4x4,v5e:4x8", "v5e:4x4"])
    ('v5e:4x4', 'v5e:4x8')
    """
    parts = [part.strip() for text in texts for part in text.split(",")]
    if not all(parts):
        raise InputError(f"{option} {','.join(texts)!r}: a value is empty; expected values with commas between them")
    return tuple(dict.fromkeys(parts))


def whole(option: str, text: str) -> int:
    """A whole number; its range is for the caller to check.

    >>> whole("--context", "8192")
    8192
    """
    if not _WHOLE.fullmatch(text.strip()):
        raise InputError(f"{option} {text!r}: expected a whole number, such as 64")
    if len(text.strip()) > _MOST_DIGITS:
        raise InputError(f"{option} {text[:12]}...: expected a whole number of at most {_MOST_DIGITS} digits")
    return int(text)


def wholes(option: str, texts: Sequence[str]) -> tuple[int, ...]:
    """Whole numbers of an option that repeats or takes commas.

    >>> wholes("--batch", ["1,8", "64"])
    (1, 8, 64)
    """
    return tuple(whole(option, word) for word in words(option, texts))


def number(option: str, text: str) -> float:
    """A number; its range is for the caller to check.

    >>> number("--timing-within", "1.5")
    1.5
    """
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{option} {text!r}: expected a number, such as 1.5") from None


def cuts_of(cuts: str, whole_axes: bool) -> str:
    """How torus axes are cut, by `--cuts` and `--devices-only-whole-axes`."""
    if whole_axes and cuts == "all":
        raise InputError("--cuts all and --devices-only-whole-axes contradict each other; expected one of them")
    return "none" if whole_axes else cuts


def one_of(option: str, text: str, known: Sequence[str]) -> str:
    """The text, if it is one of the known words."""
    if text not in known:
        raise InputError(f"{option} {text!r}: expected {', '.join(known[:-1])} or {known[-1]}")
    return text


def fixed_roles(texts: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    """`--fix attention=Z:B,Y:K`, repeated, as roles by component and torus axis.

    >>> fixed_roles(["attention=Z:B,Y:K", "mlp=X:F"])
    {'attention': {'Z': 'B', 'Y': 'K'}, 'mlp': {'X': 'F'}}
    """
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        component, equals, axes = text.partition("=")
        if not equals or not component.strip():
            raise InputError(f"--fix {text!r}: {_FIX}")
        of = found.setdefault(component.strip(), {})
        for part in axes.split(","):
            axis, role = _axis_and_role(part, text)
            if of.setdefault(axis, role) != role:
                raise InputError(
                    f"--fix {text!r}: torus axis {axis} has role {of[axis]} already; expected one per axis"
                )
    return found


_FIX = "expected COMPONENT=TORUSAXIS:ROLE,..., such as attention=Z:B,Y:K"


def _axis_and_role(part: str, text: str) -> tuple[str, str]:
    axis, colon, role = (piece.strip() for piece in part.partition(":"))
    if not axis or not colon or not role:
        raise InputError(f"--fix {text!r}: {part.strip()!r} is not TORUSAXIS:ROLE; {_FIX}")
    return axis, role


def one_slice(option: str, texts: Sequence[str]) -> str:
    """The one slice of a command that takes no more."""
    names = words(option, texts)
    if len(names) > 1:
        raise InputError(f"{option} {','.join(names)}: expected one slice for this command")
    return names[0]
