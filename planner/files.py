"""Writing files whole or not at all."""

import contextlib
import os
import tempfile
from pathlib import Path

from mesh.errors import InputError


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that others see the old one or the whole new one; raises `InputError` where it cannot be.

    A link is followed; a device or pipe is written to directly.
    """
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file() and not target.is_dir():
            target.write_bytes(data)
        else:
            _replace(target, data)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"cannot write '{path}': {reason}; expected a file in a folder that can be written") from None


def _replace(target: Path, data: bytes) -> None:
    if target.is_dir():
        raise IsADirectoryError(None, "it is a folder")
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(_mode(target))
        Path(temporary).replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def _mode(target: Path) -> int:
    """The mode of the file that is replaced, or that of a new one."""
    if target.exists():
        return target.stat().st_mode & 0o7777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
