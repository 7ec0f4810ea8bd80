"""An independent check of collectives.py: no schedule on the torus can beat its best cut.

Build the slice as a graph (networkx), take every box of devices (a product of intervals), and divide the
bytes that must cross its border by the capacity of the edges that cross it, all groups running at once.
The best box is a lower bound on the time of any algorithm. Nothing here knows a formula: edges are read off
the graph, members of groups are counted. On a chip of two devices, half of each ICI link is given to each
core; a cut around whole chips sees the whole link.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import networkx as nx
import numpy as np

from mesh.pieces import Piece
from mesh.slices import Slice

Node = tuple[int, ...]
Counts = np.ndarray[Any, np.dtype[np.float64]]  # [boxes, groups] or [boxes]


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Least seconds per byte of the gathered array (AllReduce: of the reduced array)."""

    all_gather_s_per_byte: float
    reduce_scatter_s_per_byte: float
    all_reduce_s_per_byte: float
    all_to_all_s_per_byte: float


class Boxes(msgspec.Struct, frozen=True, kw_only=True):
    """Every box of a slice but the whole, with the bytes/s that its border lets in and out."""

    nodes: tuple[Node, ...]
    inside: Counts  # [boxes, devices] of 0 and 1
    in_bytes_per_s: Counts  # [boxes]
    out_bytes_per_s: Counts  # [boxes]


def torus(slice_: Slice) -> "nx.DiGraph[Node]":
    """The devices of a slice and its one-way links, each with its bytes_per_s."""
    graph: nx.DiGraph[Node] = nx.DiGraph()
    graph.add_nodes_from(itertools.product(*(range(axis.size) for axis in slice_.axes)))
    for node in list(graph):
        for axis, bytes_per_s in enumerate(_rates(slice_)):
            ahead = _step(slice_, node, axis)
            if ahead in graph and ahead != node:
                graph.add_edge(node, ahead, bytes_per_s=bytes_per_s)
                graph.add_edge(ahead, node, bytes_per_s=bytes_per_s)
    return graph


def boxes(slice_: Slice) -> Boxes:
    """Every product of intervals (on a ring: of arcs), measured on the graph."""
    graph = torus(slice_)
    nodes = tuple(graph)
    every = itertools.product(*(_arcs(axis.size, axis.ring) for axis in slice_.axes))
    inside = np.array([[_within(node, box) for node in nodes] for box in every], dtype=float)
    inside = inside[inside.sum(axis=1) < len(nodes)].reshape(-1, len(nodes))
    into, out = _border(graph, nodes, inside)
    return Boxes(nodes=nodes, inside=inside, in_bytes_per_s=into, out_bytes_per_s=out)


def bounds(slice_: Slice, pieces: Iterable[Piece], within: Boxes | None = None) -> Bounds:
    """The bounds for the groups that these pieces form; pass `boxes(slice_)` to reuse it."""
    within = within or boxes(slice_)
    labels = _groups(within.nodes, tuple(pieces))
    members = within.inside @ (labels[:, None] == np.arange(labels.max() + 1))  # [boxes, groups]
    n = len(labels) / (labels.max() + 1)
    cut = (members > 0) & (members < n)
    into, out = within.in_bytes_per_s, within.out_bytes_per_s
    # Shards held outside come in once, however many members inside want them.
    gather = _best(lambda: np.where(cut, (n - members) / n, 0).sum(axis=1), into)
    # One partial sum per shard wanted outside goes out, however many members inside add to it.
    scatter = _best(lambda: np.where(cut, (n - members) / n, 0).sum(axis=1), out)
    # The sum over the members outside must come in, whole.
    reduce = _best(lambda: cut.sum(axis=1), into)
    # Every pair of members, one inside and one outside, exchanges its own V/n^2.
    swap = _best(lambda: (members * (n - members) / n**2).sum(axis=1), into)
    return Bounds(
        all_gather_s_per_byte=gather,
        reduce_scatter_s_per_byte=scatter,
        all_reduce_s_per_byte=reduce,
        all_to_all_s_per_byte=swap,
    )


def _best(crossing: Callable[[], Counts], bytes_per_s: Counts) -> float:
    """The slowest box: bytes that must cross per byte of the array, over the rate of the border."""
    return float((crossing() / bytes_per_s).max(initial=0.0))


def _rates(slice_: Slice) -> list[float]:
    """Bytes/s of one device's edge along each axis."""
    chip = slice_.chip
    ici_bytes_per_s = chip.link_bytes_per_s / chip.devices_per_chip
    return [(chip.core_link_bytes_per_s or 0.0) if axis.core else ici_bytes_per_s for axis in slice_.axes]


def _step(slice_: Slice, node: Node, axis: int) -> Node:
    """The next device along an axis; past the end of a line, a node that is not in the graph."""
    ahead = node[axis] + 1
    if slice_.axes[axis].ring:
        ahead %= slice_.axes[axis].size
    return (*node[:axis], ahead, *node[axis + 1 :])


def _arcs(size: int, ring: bool) -> list[frozenset[int]]:
    """Every interval of an axis, those of a ring also around its end."""
    arcs = {
        frozenset(place % size for place in range(start, start + length))
        for length in range(1, size + 1)
        for start in range(size if ring else size - length + 1)
    }
    return sorted(arcs, key=sorted)


def _within(node: Node, box: tuple[frozenset[int], ...]) -> bool:
    return all(place in interval for place, interval in zip(node, box, strict=True))


def _border(graph: "nx.DiGraph[Node]", nodes: tuple[Node, ...], inside: Counts) -> tuple[Counts, Counts]:
    """Bytes/s of the edges that enter and that leave each box."""
    index = {node: place for place, node in enumerate(nodes)}
    edges: list[tuple[Node, Node, float]] = list(graph.edges(data="bytes_per_s"))
    tails = inside[:, [index[tail] for tail, _, _ in edges]]  # [boxes, edges]
    heads = inside[:, [index[head] for _, head, _ in edges]]
    rates = np.array([bytes_per_s for _, _, bytes_per_s in edges], dtype=float)
    return ((1 - tails) * heads) @ rates, (tails * (1 - heads)) @ rates


def _groups(nodes: tuple[Node, ...], pieces: tuple[Piece, ...]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The number of each device's group: devices that differ only in the digits of the pieces share one."""
    numbers: dict[Node, int] = {}
    fixed = [_without_digits(node, pieces) for node in nodes]
    return np.array([numbers.setdefault(key, len(numbers)) for key in fixed])


def _without_digits(node: Node, pieces: tuple[Piece, ...]) -> Node:
    places = list(node)
    for piece in pieces:
        places[piece.axis] -= node[piece.axis] // piece.stride % piece.size * piece.stride
    return tuple(places)
