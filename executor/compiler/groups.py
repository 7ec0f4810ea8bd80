"""Replica groups of a compiled program's collectives: the devices that communicate, however HLO writes them."""

from __future__ import annotations

import re
from math import prod

import numpy as np

Groups = tuple[tuple[int, ...], ...]

_LISTED = r"\{\{[^=]*?\}\}|\{\}"
_IOTA = r"\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?"
_AXES = r"mesh\[[^\]]*\](?:, device_ids=\(\[[\d,]+\](?:T\([\d,]+\))?\))? *\{[^}]*\}"
GROUPS = rf"replica_groups=({_LISTED}|{_IOTA}|{_AXES})"
_MESH = re.compile(r"mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? *\{([^}]*)\}")


def parse_groups(text: str, devices: int) -> Groups:
    """Replica groups in any of HLO's forms; `{}` is one group of all devices, and `mesh` has axes, or parts of them.

    >>> parse_groups("{{0,1},{2,3}}", 4), parse_groups("[2,2]<=[2,2]T(1,0)", 4)
    (((0, 1), (2, 3)), ((0, 2), (1, 3)))
    >>> parse_groups("mesh['a'=2,'b'=2] {'a'}", 4)
    ((0, 2), (1, 3))
    """
    if text.startswith("mesh"):
        return _along_axes(*_MESH.fullmatch(text).groups())  # type: ignore[union-attr]
    if text.startswith("{"):
        listed = re.findall(r"\{([\d,]+)\}", text)
        return tuple(tuple(map(int, group.split(","))) for group in listed) or (tuple(range(devices)),)
    shape, dims, order = re.fullmatch(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text).groups()  # type: ignore[union-attr]
    return _rows(_numbered(dims, order).reshape(_ints(shape)))


def _along_axes(axes: str, dims: str | None, order: str | None, over: str) -> Groups:
    """Of a mesh `'a'=2,'b'=4` whose devices have another order than 0, 1, ... if `dims`: over `'b'` or `'b':(2)2`.

    `'b':(2)2` is the part of b of size 2 that has 2 parts before it.
    """
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", axes)}
    used = {name: (int(a or 1), int(n or 0)) for name, a, n in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", over)}
    shape, inside = list[int](), list[int]()
    for name, size in sizes.items():
        before, part = used.get(name, (size, 1))
        part = part or size
        inside.append(len(shape) + 1)
        shape += [before, part, size // before // part]
    ids = _numbered(dims or str(prod(shape)), order).reshape(shape)
    ids = ids.transpose([n for n in range(ids.ndim) if n not in inside] + inside)
    return _rows(ids.reshape(-1, prod(shape[n] for n in inside)))


def _numbered(dims: str, order: str | None) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    ids = np.arange(prod(_ints(dims))).reshape(_ints(dims))
    return ids.transpose(_ints(order)) if order else ids


def _rows(ids: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Groups:
    return tuple(tuple(map(int, row)) for row in ids)


def _ints(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]
