"""Write files completely or not at all."""

import contextlib
import os
import tempfile
from pathlib import Path

from mesh.errors import InputError


def check_writable(path: Path) -> None:
    """Raise `InputError` if `write_whole` could not write to `path`.

    Commands call it before a long search, so that a bad path ends them at once and no result is lost.
    """
    try:
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        if target.is_file() or not target.exists():
            tempfile.TemporaryFile(dir=target.parent).close()
    except (OSError, ValueError) as error:
        raise _cannot(path, error) from None


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that readers see either the old content or all of the new.

    The data goes to a temporary file in the same folder, which then replaces the target and keeps its mode. A
    symbolic link is followed; a device or pipe is written to directly. Raises `InputError` if writing fails.
    """
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file() and not target.is_dir():
            target.write_bytes(data)
        else:
            _replace(target, data)
    except (OSError, ValueError) as error:
        raise _cannot(path, error) from None


def _cannot(path: Path, error: Exception) -> InputError:
    """Return the error for a path that cannot be written."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return InputError(f"cannot write '{path}': {reason}; expected a file in a folder that can be written")


def _replace(target: Path, data: bytes) -> None:
    """Write a temporary file and let it replace the target."""
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
    """Return the mode bits of the file that is replaced, or those that the umask gives a new one."""
    if target.exists():
        return target.stat().st_mode & 0o7777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
