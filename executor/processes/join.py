"""Several processes, on one host or on many, that verify one plan together under `jax.distributed`.

The same command starts once per process, and each takes its share of the host devices. Process 0 speaks for all.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from executor.processes.abort_guard import AbortGuard, guarded, why_ended
from executor.processes.agreement import ProcessGroup, SingleProcess
from executor.wording import first_line
from mesh.errors import InputError

TIMEOUT_S = 60
HIGHEST_PORT = 65535
_ADDRESS = re.compile(r"(?:[^\s:\[\]]+|\[[0-9a-fA-F:.]+\]):([0-9]{1,5})")


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """The addresses by which processes find each other; JAX asks the cluster for what is None (TPU pods, Slurm, MPI).

    `coordinator`: HOST:PORT at which process 0 listens. `process_id`: this process's number, from 0. `timeout_s`: how
    long the others are waited for. Raises `InputError` on nonsense.
    """

    coordinator: str | None = None
    processes: int | None = None
    process_id: int | None = None
    timeout_s: int = TIMEOUT_S

    def __post_init__(self) -> None:
        address = _ADDRESS.fullmatch(self.coordinator) if self.coordinator is not None else None
        if self.coordinator is not None and not (address and 1 <= int(address[1]) <= HIGHEST_PORT):
            expected = "expected HOST:PORT of process 0, such as 10.0.0.1:1234"
            raise InputError(f"coordinator {self.coordinator!r}: {expected}", "coordinator")
        if self.processes is not None and self.processes < 1:
            raise InputError(f"processes {self.processes}: expected at least 1", "processes")
        if self.process_id is not None and not 0 <= self.process_id < (self.processes or self.process_id + 1):
            count = self.processes
            expected = f"expected 0 to {count - 1} of {count} processes" if count else "expected 0 or more"
            raise InputError(f"process_id {self.process_id}: {expected}", "process_id")
        if self.timeout_s < 1:
            raise InputError(f"timeout {self.timeout_s}: expected at least 1 second", "timeout")

    @property
    def arrival(self) -> str:
        """Return how the process has joined the others, in words."""
        who = f"all {self.processes} processes" if self.processes else "all processes"
        return f"{who} came to {self.coordinator or 'the coordinator'} within {self.timeout_s} s"


@contextlib.contextmanager
def joined(hosts: Hosts | None) -> Iterator[SingleProcess]:
    """This process as one of several; on the way out all of them leave together."""
    if hosts is None:
        yield SingleProcess()
        return
    with guarded(lambda log: why_ended(log, hosts.arrival)) as guard:
        group = _join(hosts, guard)
        try:
            yield group
        except Exception as error:
            group.give_up(error)
            raise
        finally:
            _leave()


def _join(hosts: Hosts, guard: AbortGuard) -> ProcessGroup:
    if hosts.coordinator:
        _check_coordinator(hosts.coordinator, hosts.process_id, hosts.timeout_s)
    import jax
    from jax._src.distributed import global_state  # the store with timeouts has no public name

    options: Any = jax.config
    options.update("jax_enable_preemption_service", False)  # it catches SIGTERM and goes on
    try:
        jax.distributed.initialize(
            hosts.coordinator,
            hosts.processes,
            hosts.process_id,
            initialization_timeout=hosts.timeout_s,
            heartbeat_timeout_seconds=min(max(hosts.timeout_s // 3, 5), 20),
            shutdown_timeout_seconds=hosts.timeout_s,
        )
    except Exception as error:
        raise InputError(f"the processes cannot join: {first_line(error)}") from None
    state: Any = global_state
    return ProcessGroup(state.client, state.num_processes, state.process_id, hosts.timeout_s, guard)


def _leave() -> None:
    import jax

    distributed: Any = jax.distributed
    with contextlib.suppress(Exception):
        distributed.shutdown()


def _check_coordinator(address: str, process_id: int | None, timeout_s: int) -> None:
    """Raise `InputError` unless the port is free (process 0) or answered in time; JAX would crash, or wait longer."""
    host, _, port = address.rpartition(":")
    if process_id == 0:
        try:
            socket.create_server(("", int(port))).close()
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            message = f"coordinator {address}: process 0 cannot listen there: {reason}"
            raise InputError(message, "coordinator") from None
        return
    deadline = time.monotonic() + timeout_s
    while process_id is not None:
        try:
            left_s = max(deadline - time.monotonic(), 0.1)
            socket.create_connection((host.strip("[]"), int(port)), timeout=left_s).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                reason = error.strerror or first_line(error)
                raise InputError(f"no process 0 at {address} within {timeout_s} s: {reason}") from None
        time.sleep(0.1)
