"""Agreement of processes that verify one plan: on the question, on each level, and on the exit code.

They do so through the key-value store of `jax.distributed`, which answers within a time, where a collective would wait
for ever. Whatever ends a step in one process is told to the others, so that all end alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from executor.devices import Unavailable
from executor.processes.abort_guard import AbortGuard, why_ended
from executor.verdict import FAILED, Finding, Level
from executor.wording import first_line
from mesh.errors import InputError

T = TypeVar("T")

EVERYWHERE = ("numerics", "collectives")  # levels that run on the devices of all processes; others run in process 0
_SLICE_MS = 1000  # between two looks for Ctrl-C


class SingleProcess:
    """The stand-in for a group of processes where there is only one."""

    processes, process_id = 1, 0

    def same(self, run: Callable[[], T], facts: Callable[[T], Mapping[str, str]]) -> T:
        """Return the value of `run`; raises `InputError` unless its facts are equal in every process."""
        return run()

    def level(self, name: str, run: Callable[[], Level]) -> Level:
        """The level of all processes together."""
        return run()

    def last(self, run: Callable[[], int]) -> int:
        """Run the last step in process 0 alone; its exit code is that of all processes."""
        return run()


class _Outcome(msgspec.Struct):
    """The message of one process to the others: a value, or the error that it ended with."""

    processes: int
    value: Any = None
    error: str | None = None
    text: str = ""

    def value_from(self, process: int, type_: type[T]) -> T:
        """The value that this process gave, or its error raised here."""
        if self.error == "Unavailable":
            raise Unavailable(f"process {process}: {self.text}")
        if self.error in ("InputError", "BrokenPipeError"):
            raise InputError(f"process {process}: {self.text}")
        if self.error is not None:
            raise RuntimeError(f"process {process}: {self.error}: {self.text}")
        return msgspec.convert(self.value, type_)


class ProcessGroup(SingleProcess):
    """One of several processes. Every process must make the same calls in the same order."""

    def __init__(self, client: Any, processes: int, process_id: int, timeout_s: int, guard: AbortGuard) -> None:
        self.processes, self.process_id = processes, process_id
        self._client, self._timeout_s, self._guard = client, timeout_s, guard
        self._turn = 0

    def same(self, run: Callable[[], T], facts: Callable[[T], Mapping[str, str]]) -> T:
        """Return the value of `run`; raises `InputError` unless its facts are equal in every process."""
        results: list[T] = []

        def attempt() -> dict[str, str]:
            results.append(run())
            return dict(facts(results[0]))

        first, *rest = self._from_all(attempt, dict[str, str])
        for number, other in enumerate(rest, 1):
            for name, value in first.items():
                if other.get(name) != value:
                    raise InputError(
                        f"process {number} has another {name} than process 0: {other.get(name)} and {value}; "
                        "every process must be started alike"
                    )
        return results[0]

    def level(self, name: str, run: Callable[[], Level]) -> Level:
        """The level of all processes together; raises what it raised in one of them."""
        if name == "timing":
            raise Unavailable(f"timing runs in one process, and this is one of {self.processes}")
        return merged(self._from_all(run, Level)) if name in EVERYWHERE else self._from_process_0(run, Level)

    def last(self, run: Callable[[], int]) -> int:
        """Run the last step in process 0 alone; its exit code is that of all processes."""
        return self._from_process_0(run, int)

    def give_up(self, error: Exception) -> None:
        """Tell the others of an error that they may not know of, wherever they are."""
        self._guard.last = first_line(error)
        self._send(self._outcome(error))

    def _from_all(self, run: Callable[[], T], type_: type[T]) -> list[T]:
        """Return the outcome of each process; none is waited for longer than the timeout after this one was done."""
        own, error = self._attempt(run)
        turn = self._send(own)
        deadline = time.monotonic() + self._timeout_s
        outcomes = [own if i == self.process_id else self._receive(turn, i, deadline) for i in range(self.processes)]
        if error is not None:
            raise error
        return [outcome.value_from(i, type_) for i, outcome in enumerate(outcomes)]

    def _from_process_0(self, run: Callable[[], T], type_: type[T]) -> T:
        """Return the outcome of process 0, however long it takes."""
        if self.process_id == 0:
            outcome, error = self._attempt(run)
            self._send(outcome)
        else:
            turn = self._next_turn()
            outcome, error = self._receive(turn, 0), None
        if error is not None:
            raise error
        return outcome.value_from(0, type_)

    def _attempt(self, run: Callable[[], Any]) -> tuple[_Outcome, Exception | None]:
        try:
            return _Outcome(self.processes, msgspec.to_builtins(run())), None
        except Exception as error:  # whatever it is, the others must know
            return self._outcome(error), error

    def _outcome(self, error: Exception) -> _Outcome:
        return _Outcome(self.processes, error=type(error).__name__, text=first_line(error))

    def _send(self, outcome: _Outcome) -> int:
        """Say it, and return the turn in which it is said."""
        turn = self._next_turn()
        try:
            self._client.key_value_set(_key(turn, self.process_id), msgspec.json.encode(outcome).decode())
        except Exception as error:  # whatever jaxlib's own type is in this version
            self._end_lost(error)
        return turn

    def _next_turn(self) -> int:
        self._turn += 1
        return self._turn

    def _receive(self, turn: int, process: int, deadline: float | None = None) -> _Outcome:
        while True:
            started = time.monotonic()
            try:
                message = self._client.blocking_key_value_get(_key(turn, process), _SLICE_MS)
                break
            except Exception as error:  # whatever jaxlib's own type is in this version
                if time.monotonic() - started < _SLICE_MS / 1000:  # else there is no answer yet
                    self._end_lost(error)
            if deadline is not None and time.monotonic() > deadline:
                self._guard.end(f"process {process} is not done {self._timeout_s} s (the timeout) after this one was")
        outcome = msgspec.json.decode(message, type=_Outcome)
        if outcome.processes != self.processes:
            own_count = f"process {self.process_id} is one of {self.processes}"
            other_count = f"process {process} one of {outcome.processes}"
            raise InputError(f"{own_count}, {other_count}; the number of processes must be the same everywhere")
        return outcome

    def _end_lost(self, error: Exception) -> None:
        time.sleep(1)  # JAX ends this process when it finds out why
        self._guard.end(why_ended(f"{self._guard.log}\n{error}", ""))


def _key(turn: int, process: int) -> str:
    return f"meshwright/{turn}/{process}"


def merged(levels: Sequence[Level]) -> Level:
    """The level of all processes: that of process 0, and what others found besides."""
    first, *rest = levels
    findings = list(first.findings)
    for number, level in enumerate(rest, 1):
        more = [f for f in level.findings if f not in first.findings]
        findings += [Finding(what=f"process {number}: {f.what}", promised=f.promised, found=f.found) for f in more]
    failed = next((level for level in levels if level.status == FAILED), first)
    return msgspec.structs.replace(first, status=failed.status, reason=failed.reason, findings=tuple(findings))
