"""Compute the HBM of one slice with a prefill and a decode plan: bytes at each moment, and how weights are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod

from mesh.slices import Slice
from planner.plan.file_serving import Reshard, SharedHbm
from planner.plan.plan import Plan
from planner.serve.reshard import differing, insert_move, layers_of, sum_of_moves, weight_names, weights_move
from strategies.models.workload import dtype_bytes


@dataclass(frozen=True)
class Pair:
    """A prefill and a decode plan on one slice, with the costs of both, computed once and only if needed."""

    prefill: Plan
    decode: Plan
    slice_: Slice

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the weights that the plans do not store alike."""
        return differing(self.prefill, self.decode, self.slice_)

    @cached_property
    def copied_bytes(self) -> float:
        """Bytes per device of the prefill's weights for which the decode's cannot be used."""
        stored = _stored(self.prefill)
        return sum(stored.get(name, 0.0) for name in self.names)

    @cached_property
    def insert(self) -> Reshard:
        """Move of a prefill step's caches into the decode layout."""
        return insert_move(self.prefill, self.decode, self.slice_)

    @cached_property
    def switch(self) -> Reshard:
        """Move of the differing weights into the prefill's layout and back."""
        there = weights_move(self.decode, self.prefill, self.slice_)
        return sum_of_moves([there, weights_move(self.prefill, self.decode, self.slice_)])

    def shared_hbm(self, *, at_once: bool) -> SharedHbm | None:
        """Return the HBM use with which both plans fit, or None where they do not.

        Weights are `shared` where every weight is cut alike; otherwise `copies` of the differing ones are tried, which
        cost memory only, then `resharded`, which costs time.
        """
        ways = ("copies", "resharded") if self.names else ("shared",)
        if any(name not in plan.specs for plan in (self.prefill, self.decode) for name in self.names):
            ways = ("copies",)
        for weights in ways:
            total_bytes, fullest = self.fullest_moment(weights, at_once=at_once)
            if total_bytes <= self.decode.memory.usable_bytes:
                return self._shared_hbm(weights, total_bytes, fullest)
        return None

    def fullest_moment(self, weights: str, *, at_once: bool) -> tuple[float, str]:
        """Return the bytes per device at the fullest moment of the slice, and its name.

        prefill   its weights, the caches it makes, its activations; the decode's caches, unless the batch is
                  prefilled `at_once`, when there are none yet
        insert    the prefill's caches beside the decode's
        decode    its weights, its caches, its activations
        switch    (`resharded`) the decode's caches, and each weight in either layout, the one that moves in both

        Weights that both store alike count once, copies of the others (`copies`) besides; the decode's caches once.
        """
        prefill, decode = self.prefill.memory, self.decode.memory
        weights_bytes = decode.weights_bytes + (self.copied_bytes if weights == "copies" else 0.0)
        prefill_weights_bytes = prefill.weights_bytes if weights == "resharded" else weights_bytes
        moments = {
            "prefill": prefill_weights_bytes
            + (0.0 if at_once else decode.kv_bytes)
            + prefill.kv_bytes
            + prefill.activation_bytes,
            "insert": prefill_weights_bytes + decode.kv_bytes + prefill.kv_bytes,
            "decode": weights_bytes + decode.kv_bytes + decode.activation_bytes,
        }
        if weights == "resharded":
            moments["switch"] = decode.kv_bytes + _switching(self.prefill, self.decode)
        fullest = max(moments, key=lambda name: (moments[name], name))
        return moments[fullest], fullest

    def _shared_hbm(self, weights: str, total_bytes: float, fullest: str) -> SharedHbm:
        """Return the HBM use of both plans in this mode."""
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
    """Return the number of prefill steps that fill the decode's batch."""
    return ceil(decode.batch / prefill.batch)


def _switching(prefill: Plan, decode: Plan) -> float:
    """Return the largest bytes of weights while they move one by one, in the order of the decode's specs."""
    old, new = _stored(prefill), _stored(decode)
    rest = max(prefill.memory.weights_bytes - sum(old.values()), decode.memory.weights_bytes - sum(new.values()), 0.0)
    largest, moved, left = 0.0, 0.0, sum(old.values())
    for name, nbytes in new.items():
        largest = max(largest, moved + nbytes + left)
        moved, left = moved + nbytes, left - old.get(name, 0.0)
    for name, nbytes in old.items():  # and back
        largest = max(largest, moved + nbytes + left)
        moved, left = moved - new.get(name, 0.0), left + nbytes
    return largest + rest


def _stored(plan: Plan) -> Mapping[str, float]:
    """Return the bytes per device of every weight, of all its layers."""
    sizes = plan.mesh.sizes
    result = {}
    for name in weight_names(plan):
        spec = plan.specs[name]
        ways = prod(sizes[axis] for axes in spec.axes for axis in axes)
        result[name] = layers_of(plan, name) * prod(spec.shape) * dtype_bytes(spec.dtype) / ways
    return result
