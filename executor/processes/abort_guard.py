"""A guard around JAX's C++ in a process that has joined others: its output and its SIGABRT become one line.

JAX ends the process (SIGABRT, after pages on stderr) when another one dies or does not come, and gloo writes to stdout.
So while processes are joined, both go to a file; Python keeps the streams; and the signal is one line and exit code 2.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

BAD_INPUT, INTERRUPTED = 2, 130
DescribeAbort = Callable[[str], str]  # what JAX wrote before it ended the process -> one line for the user


class AbortGuard:
    """The streams of a joined process; `end` leaves it at once, from any thread."""

    def __init__(self, describe: DescribeAbort) -> None:
        self._describe = describe
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._python_streams = sys.stdout, sys.stderr
        self._saved_fds = os.dup(1), os.dup(2)
        self._ending = threading.Lock()
        self.last: str | None = None  # the line to end with, where it is known already

    @property
    def log(self) -> str:
        """Return the text that C++ has written."""
        return os.pread(self._log.fileno(), 1 << 20, 0).decode("utf-8", "replace")

    def begin(self) -> None:
        """Take C++ its streams."""
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = (
            open(fd, "w", buffering=1, encoding=s.encoding, errors=s.errors, closefd=False)  # noqa: SIM115
            for fd, s in zip(self._saved_fds, self._python_streams, strict=True)
        )
        for number in (1, 2):
            os.dup2(self._log.fileno(), number)

    def restore(self) -> None:
        """Give them back."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        _libc().fflush(None)  # what gloo has written and not flushed stays in the file
        for number, fd in enumerate(self._saved_fds, 1):
            os.dup2(fd, number)
            os.close(fd)
        sys.stdout, sys.stderr = self._python_streams
        self._log.close()

    def end(self, line: str, code: int = BAD_INPUT) -> NoReturn:
        """Say it and leave, without waiting for other processes or threads."""
        if not self._ending.acquire(blocking=False):
            threading.Event().wait()  # another thread is at it
        clear = "\r\x1b[K" if os.isatty(self._saved_fds[1]) else ""
        debug = self.log if os.environ.get("MESHWRIGHT_DEBUG") else ""
        os.write(self._saved_fds[1], f"{debug}{clear}meshwright: {' '.join(line.split())}\n".encode("utf-8", "replace"))
        os._exit(code)

    def aborted(self, _signal: int = 0) -> NoReturn:
        """The handler of SIGABRT."""
        self.end(self.last or self._describe(self.log))

    def interruptible(self) -> Callable[[], None]:
        """Let Ctrl-C end the process even while its main thread waits in C++; what is returned takes that back."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        before = signal.set_wakeup_fd(writing)

        def watch() -> None:
            while number := os.read(reading, 1):
                if number[0] == signal.SIGINT:
                    self.end("interrupted", INTERRUPTED)
            os.close(reading)

        threading.Thread(target=watch, daemon=True).start()

        def undo() -> None:
            signal.set_wakeup_fd(before)
            os.close(writing)

        return undo


def _libc() -> Any:
    return ctypes.CDLL(None)


@contextlib.contextmanager
def guarded(describe: DescribeAbort) -> Iterator[AbortGuard]:
    """Keep C++ apart from the user's streams, and turn SIGABRT into a line, which `told` finds in what was written."""
    guard = AbortGuard(describe)
    # A handler of Python's own would run in the main thread, which may wait for a collective that never comes.
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(guard.aborted)
    guard.begin()
    _libc().signal(signal.SIGABRT, handler)
    undo = guard.interruptible()
    try:
        yield guard
    finally:
        undo()
        _libc().signal(signal.SIGABRT, None)
        guard.restore()


def why_ended(log: str, arrival: str) -> str:
    """Why JAX ended the process, in a line; `came`: which processes were to come, where and within what time."""
    if match := re.search(r"stopped sending heartbeats\):\s*([\d\s,]*\d)", log):
        return f"process {', '.join(re.findall(r'[0-9]+', match[1]))} ended before it was done, or answers no more"
    if "incarnation" in log:
        return "two processes have the same process id"
    if match := re.search(r"Unexpected task registered with task=(\d+)", log):
        expected = "the number of processes must be the same everywhere"
        return f"process {match[1]} is one too many for the coordinator: {expected}"
    if "RegisterTask" in log and "DEADLINE_EXCEEDED" in log:
        return f"not {arrival}: each needs the same coordinator and number of processes, and a process id of its own"
    if re.search(r"Socket closed|PollForError|UNAVAILABLE", log):
        return "process 0, the coordinator, ended before this one was done"
    lines = log.splitlines() or ["no reason was given"]
    line = next((text for text in lines if text.startswith("F")), lines[-1])
    return f"JAX ended the process: {line}"
