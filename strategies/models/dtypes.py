"""Bytes per value of each dtype that weights, caches and activations may have."""

from collections.abc import Mapping
from types import MappingProxyType

from mesh.errors import InputError

DTYPE_BYTES: Mapping[str, float] = MappingProxyType({"f32": 4, "bf16": 2, "f16": 2, "fp8": 1, "int8": 1, "int4": 0.5})


def dtype_bytes(name: str) -> float:
    """Bytes of one value of dtype `name`.

    >>> dtype_bytes("bf16"), dtype_bytes("int4")
    (2, 0.5)
    """
    try:
        return DTYPE_BYTES[name]
    except KeyError:
        known = ", ".join(DTYPE_BYTES)
        raise InputError(f"dtype {name!r} is not known; expected one of: {known}") from None
