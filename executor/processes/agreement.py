"""Make processes that verify one plan agree on the plan, on the result of each level, and on the exit code.

They exchange values through the key-value store of `jax.distributed`, which answers within a time limit; a collective
would wait forever. An error that ends a step in one process is sent to the others, so that all end alike.
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
_SLICE_MS = 1000  # milliseconds of one wait; Ctrl-C is noticed between two waits


class SingleProcess:
    """The agreement of a verification in one process, which has nobody to agree with."""

    processes, process_id = 1, 0

    def same(self, run: Callable[[], T], facts: Callable[[T], Mapping[str, str]]) -> T:
        """Run a function and return its result here; a single process has nobody to agree with."""
        return run()

    def level(self, name: str, run: Callable[[], Level]) -> Level:
        """Run a level and return its result, the one result of all processes."""
        return run()

    def last(self, run: Callable[[], int]) -> int:
        """Run the end of the command in process 0 only, and return its exit code in every process."""
        return run()


class _Outcome(msgspec.Struct):
    """The outcome of a step in one process, as it is sent to the others: a value, or the error that ended the step."""

    processes: int
    value: Any = None
    error: str | None = None
    text: str = ""

    def value_from(self, process: int, type_: type[T]) -> T:
        """Return the value that the process sent, or raise its error here."""
        if self.error == "Unavailable":
            raise Unavailable(f"process {process}: {self.text}")
        if self.error in ("InputError", "BrokenPipeError"):
            raise InputError(f"process {process}: {self.text}")
        if self.error is not None:
            raise RuntimeError(f"process {process}: {self.error}: {self.text}")
        return msgspec.convert(self.value, type_)


class ProcessGroup(SingleProcess):
    """The agreement of one of several processes. Every process must make the same calls in the same order.

    `client`: the key-value store of `jax.distributed`. `process_id`: the number of this process, from 0. `timeout_s`:
    the seconds that this process waits for the others after it is done with a step itself.
    """

    def __init__(self, client: Any, processes: int, process_id: int, timeout_s: int, guard: AbortGuard) -> None:
        self.processes, self.process_id = processes, process_id
        self._client, self._timeout_s, self._guard = client, timeout_s, guard
        self._turn = 0

    def same(self, run: Callable[[], T], facts: Callable[[T], Mapping[str, str]]) -> T:
        """Run a function in every process and return its result here.

        `facts` maps the result to named facts; raises `InputError` if one differs between processes.
        """
        results: list[T] = []

        def attempt() -> dict[str, str]:
            results.append(run())
            return dict(facts(results[0]))

        first, *others = self._from_all(attempt, dict[str, str])
        for number, other in enumerate(others, 1):
            for name, value in first.items():
                if other.get(name) != value:
                    raise InputError(
                        f"process {number} has another {name} than process 0: {other.get(name)} and {value}; "
                        "every process must be started alike"
                    )
        return results[0]

    def level(self, name: str, run: Callable[[], Level]) -> Level:
        """Run a level and return the merged result of all processes; raises the error that it raised in any of them.

        Levels in `EVERYWHERE` run in every process, the others in process 0 only. Level `timing` raises `Unavailable`,
        because it needs one process.
        """
        if name == "timing":
            raise Unavailable(f"timing runs in one process, and this is one of {self.processes}")
        return merged(self._from_all(run, Level)) if name in EVERYWHERE else self._from_process_0(run, Level)

    def last(self, run: Callable[[], int]) -> int:
        """Run the end of the command in process 0 only, and return its exit code in every process."""
        return self._from_process_0(run, int)

    def give_up(self, error: Exception) -> None:
        """Send the others an error that they may not know of, whichever step they are in."""
        self._guard.last = first_line(error)
        self._send(self._outcome(error))

    def _from_all(self, run: Callable[[], T], type_: type[T]) -> list[T]:
        """Run a step everywhere and return the value of each process; waits `timeout_s` seconds once done itself."""
        own, error = self._attempt(run)
        turn = self._send(own)
        deadline = time.monotonic() + self._timeout_s
        outcomes = [own if i == self.process_id else self._receive(turn, i, deadline) for i in range(self.processes)]
        if error is not None:
            raise error
        return [outcome.value_from(i, type_) for i, outcome in enumerate(outcomes)]

    def _from_process_0(self, run: Callable[[], T], type_: type[T]) -> T:
        """Run a step in process 0 only and return its value, however long that takes."""
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
        """Run a step and return its outcome, and the error that it raised, if any."""
        try:
            return _Outcome(self.processes, msgspec.to_builtins(run())), None
        except Exception as error:  # the other processes must learn of every error
            return self._outcome(error), error

    def _outcome(self, error: Exception) -> _Outcome:
        """Return the outcome that reports an error to the other processes."""
        return _Outcome(self.processes, error=type(error).__name__, text=first_line(error))

    def _send(self, outcome: _Outcome) -> int:
        """Send an outcome to the others and return the number of its turn."""
        turn = self._next_turn()
        try:
            self._client.key_value_set(_key(turn, self.process_id), msgspec.json.encode(outcome).decode())
        except Exception as error:  # the type of jaxlib's error differs between versions
            self._end_lost(error)
        return turn

    def _next_turn(self) -> int:
        """Return the number of the next exchange; it is equal in all processes."""
        self._turn += 1
        return self._turn

    def _receive(self, turn: int, process: int, deadline: float | None = None) -> _Outcome:
        """Wait for the outcome of a process; end this one if none comes until `deadline`."""
        while True:
            started = time.monotonic()
            try:
                message = self._client.blocking_key_value_get(_key(turn, process), _SLICE_MS)
                break
            except Exception as error:  # the type of jaxlib's error differs between versions
                if time.monotonic() - started < _SLICE_MS / 1000:  # a full wait means that there is no answer yet
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
        """End this process after an error of the store, unless JAX ends it first."""
        time.sleep(1)  # JAX ends this process when it finds out why
        self._guard.end(why_ended(f"{self._guard.log}\n{error}", ""))


def _key(turn: int, process: int) -> str:
    """Return the key of a process's outcome in the store."""
    return f"meshwright/{turn}/{process}"


def merged(levels: Sequence[Level]) -> Level:
    """Merge the results of one level in all processes: the result of process 0, and further findings of the others.

    The findings of others name their process. The level fails if it failed in any process.
    """
    first, *others = levels
    findings = list(first.findings)
    for number, level in enumerate(others, 1):
        more = [f for f in level.findings if f not in first.findings]
        findings += [Finding(what=f"process {number}: {f.what}", promised=f.promised, found=f.found) for f in more]
    failed = next((level for level in levels if level.status == FAILED), first)
    return msgspec.structs.replace(first, status=failed.status, reason=failed.reason, findings=tuple(findings))
