"""Moving caches that lie evenly over all chips of both sides: the transfer that needs no plan."""

from mesh.slices import Slice
from planner.plan.transfer import Share, TransferEnd, request_cache_bytes, transfer
from strategies.models.models import Model


def even_side(slice_: Slice, model: Model, kv: str, tokens: int) -> TransferEnd:
    """A side that holds every request's cache once, evenly over all its chips."""
    return TransferEnd(slice_, (Share(nbytes=request_cache_bytes(model, kv, tokens)),))


def transfer_s(model: Model, kv: str, tokens: int, source: Slice, target: Slice, requests: int = 1) -> float:
    """Seconds to move the caches of `requests` prompts of `tokens` tokens, spread evenly over both slices' chips.

    The slower side's chips decide. Llama-3.1-70B's 328 MB of 2000 tokens in int8, from 16 chips to 8, each 3.125e9:

    >>> from mesh.slices import parse_slice
    >>> from strategies.models.configs import load_model
    >>> ends = parse_slice("v5e:4x4"), parse_slice("v5e:2x4")
    >>> round(transfer_s(load_model("llama-3.1-70b"), "int8", 2000, *ends), 6)  # 327.68e6 / (8 * 3.125e9) + 1e-4
    0.013207
    """
    return transfer(even_side(source, model, kv, tokens), even_side(target, model, kv, tokens), requests).seconds
