"""A prefill and a decode plan in the HBM of one slice: what is there at each moment, and how weights are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod

from mesh.slices import Slice
from planner.plan.file_serving import Reshard, SharedHbm
from planner.plan.plan import Plan
from planner.serve.reshard import added, differing, insert_move, layers_of, weight_names, weights_move
from strategies.models.workload import dtype_bytes


@dataclass(frozen=True)
class Pair:
    """A prefill and a decode plan on one slice, and what keeping both costs: found once, and only if asked for."""

    prefill: Plan
    decode: Plan
    slice_: Slice

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The weights that the plans do not store alike."""
        return differing(self.prefill, self.decode, self.slice_)

    @cached_property
    def copied_bytes(self) -> float:
        """Bytes per device of the prefill's weights that the decode's do not serve."""
        stored = _stored(self.prefill)
        return sum(stored.get(name, 0.0) for name in self.names)

    @cached_property
    def insert(self) -> Reshard:
        """A prefill step's caches into the decode layout."""
        return insert_move(self.prefill, self.decode, self.slice_)

    @cached_property
    def switch(self) -> Reshard:
        """The weights that differ, there and back."""
        there = weights_move(self.decode, self.prefill, self.slice_)
        return added([there, weights_move(self.prefill, self.decode, self.slice_)])

    def kept(self, *, at_once: bool) -> SharedHbm | None:
        """Return how the weights are kept so that both plans fit; None: they do not fit.

        `shared`, where every weight is cut alike; else `copies` of those that are not, which cost memory only; else
        `resharded`, which costs time.
        """
        ways = ("copies", "resharded") if self.names else ("shared",)
        if any(name not in plan.specs for plan in (self.prefill, self.decode) for name in self.names):
            ways = ("copies",)
        for weights in ways:
            total_bytes, fullest = self.most_bytes(weights, at_once=at_once)
            if total_bytes <= self.decode.memory.usable_bytes:
                return self._together(weights, total_bytes, fullest)
        return None

    def most_bytes(self, weights: str, *, at_once: bool) -> tuple[float, str]:
        """The fullest moment of the slice, in bytes per device, and its name.

        prefill   its weights, the caches it makes, its activations; the decode's caches, unless the batch is
                  prefilled `at_once`, when there are none yet
        insert    the prefill's caches beside the decode's
        decode    its weights, its caches, its activations
        switch    (`resharded`) the decode's caches, and each weight in either layout, the one that moves in both

        Weights that both store alike are there once, copies of the others (`copies`) besides; the decode's caches once.
        """
        of_prefill, of_decode = self.prefill.memory, self.decode.memory
        kept = of_decode.weights_bytes + (self.copied_bytes if weights == "copies" else 0.0)
        at_prefill = of_prefill.weights_bytes if weights == "resharded" else kept
        moments = {
            "prefill": at_prefill
            + (0.0 if at_once else of_decode.kv_bytes)
            + of_prefill.kv_bytes
            + of_prefill.activation_bytes,
            "insert": at_prefill + of_decode.kv_bytes + of_prefill.kv_bytes,
            "decode": kept + of_decode.kv_bytes + of_decode.activation_bytes,
        }
        if weights == "resharded":
            moments["switch"] = of_decode.kv_bytes + _switching(self.prefill, self.decode)
        fullest = max(moments, key=lambda name: (moments[name], name))
        return moments[fullest], fullest

    def _together(self, weights: str, total_bytes: float, fullest: str) -> SharedHbm:
        copied = self.copied_bytes if weights == "copies" else 0.0
        resharded = self.prefill.memory.weights_bytes if weights == "resharded" else 0.0
        return SharedHbm(
            weights=weights,
            weights_bytes=max(resharded, self.decode.memory.weights_bytes + copied),
            copied_bytes=copied,
            kv_bytes=self.decode.memory.kv_bytes,
            total_bytes=total_bytes,
            usable_bytes=self.decode.memory.usable_bytes,
            fullest=fullest,
            switch=self.switch if weights == "resharded" else Reshard(),
            insert=self.insert,
        )


def prefill_steps(prefill: Plan, decode: Plan) -> int:
    """Return how many prefill steps fill the decode's batch."""
    return ceil(decode.batch / prefill.batch)


def _switching(prefill: Plan, decode: Plan) -> float:
    """The most that weights take while they move one after the other, in the order of the decode plan's specs."""
    old, new = _stored(prefill), _stored(decode)
    rest = max(prefill.memory.weights_bytes - sum(old.values()), decode.memory.weights_bytes - sum(new.values()), 0.0)
    most, moved, left = 0.0, 0.0, sum(old.values())
    for name, nbytes in new.items():
        most = max(most, moved + nbytes + left)
        moved, left = moved + nbytes, left - old.get(name, 0.0)
    for name, nbytes in old.items():  # and back
        most = max(most, moved + nbytes + left)
        moved, left = moved - new.get(name, 0.0), left + nbytes
    return most + rest


def _stored(plan: Plan) -> Mapping[str, float]:
    """Bytes per device of every weight, of all its layers."""
    sizes = plan.mesh.sizes
    stored = {}
    for name in weight_names(plan):
        spec = plan.specs[name]
        ways = prod(sizes[axis] for axes in spec.axes for axis in axes)
        stored[name] = layers_of(plan, name) * prod(spec.shape) * dtype_bytes(spec.dtype) / ways
    return stored
