"""Several processes, on one host or on many, that verify one plan together under `jax.distributed`.

The same command starts once per process, and each takes its share of the host devices. Process 0 speaks for all.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from executor.devices import first_line
from executor.processes.abort_guard import Apart, apart, why_ended
from executor.processes.agreement import Alone, Together
from mesh.errors import InputError
from meshwright.parsing import whole

TIMEOUT_S = 60
VARIABLES = {
    "--coordinator": "JAX_COORDINATOR_ADDRESS",
    "--processes": "JAX_NUM_PROCESSES",
    "--process-id": "JAX_PROCESS_ID",
}
_ADDRESS = re.compile(r"(?:[^\s:\[\]]+|\[[0-9a-fA-F:.]+\]):([0-9]{1,5})")


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """How this process finds the others. What is None, JAX asks the cluster for (TPU pods, Slurm, Kubernetes, MPI)."""

    coordinator: str | None = None
    processes: int | None = None
    process_id: int | None = None
    timeout_s: int = TIMEOUT_S

    @property
    def came(self) -> str:
        """What joining is, in words."""
        who = f"all {self.processes} processes" if self.processes else "all processes"
        return f"{who} came to {self.coordinator or 'the coordinator'} within {self.timeout_s} s"


def hosts_of(
    options: Mapping[str, str | None],
    *,
    distributed: bool = False,
    timeout: str = str(TIMEOUT_S),
    environ: Mapping[str, str] = os.environ,
) -> Hosts | None:
    """What the options of `VARIABLES` say, the environment where they do not; None: this is the only process.

    Without an option the environment counts only if it says everything. Raises `InputError`.
    """
    timeout_s = whole("--timeout", timeout)
    if timeout_s < 1:
        raise InputError(f"--timeout {timeout}: expected at least 1 second")
    said = {name: options.get(name) or environ.get(variable) for name, variable in VARIABLES.items()}
    missing = [f"{name} (or {VARIABLES[name]})" for name, text in said.items() if not text]
    if not distributed and missing:
        if not any(options.values()):
            return None
        raise InputError(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: {_TOGETHER}")
    numbers = {name: whole(name, text) for name, text in said.items() if text and name != "--coordinator"}
    return _checked(
        Hosts(
            coordinator=said["--coordinator"] or None,
            processes=numbers.get("--processes"),
            process_id=numbers.get("--process-id"),
            timeout_s=timeout_s,
        )
    )


_TOGETHER = "each process needs --coordinator, --processes and --process-id, or --distributed in a cluster JAX knows"


def _checked(hosts: Hosts) -> Hosts:
    if hosts.coordinator and not (
        (found := _ADDRESS.fullmatch(hosts.coordinator)) and 1 <= int(found[1]) <= _HIGHEST_PORT
    ):
        raise InputError(f"--coordinator {hosts.coordinator!r}: expected HOST:PORT of process 0, such as 10.0.0.1:1234")
    if hosts.processes is not None and hosts.processes < 1:
        raise InputError(f"--processes {hosts.processes}: expected at least 1")
    if hosts.process_id is not None and not 0 <= hosts.process_id < (hosts.processes or hosts.process_id + 1):
        expected = (
            f"0 to {hosts.processes - 1}, as --processes is {hosts.processes}" if hosts.processes else "0 or more"
        )
        raise InputError(f"--process-id {hosts.process_id}: expected {expected}")
    return hosts


_HIGHEST_PORT = 65535


@contextlib.contextmanager
def joined(hosts: Hosts | None) -> Iterator[Alone]:
    """This process as one of several; on the way out all of them leave together."""
    if hosts is None:
        yield Alone()
        return
    with apart(lambda log: why_ended(log, hosts.came)) as here:
        together = _join(hosts, here)
        try:
            yield together
        except Exception as error:
            together.give_up(error)
            raise
        finally:
            _leave()


def _join(hosts: Hosts, here: Apart) -> Together:
    if hosts.coordinator:
        _reach(hosts.coordinator, hosts.process_id, hosts.timeout_s)
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
    return Together(state.client, state.num_processes, state.process_id, hosts.timeout_s, here)


def _leave() -> None:
    import jax

    distributed: Any = jax.distributed
    with contextlib.suppress(Exception):
        distributed.shutdown()


def _reach(address: str, process_id: int | None, timeout_s: int) -> None:
    """Raise `InputError` unless the port is free (process 0) or answered in time; JAX would crash, or wait longer."""
    host, _, port = address.rpartition(":")
    if process_id == 0:
        try:
            socket.create_server(("", int(port))).close()
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise InputError(f"--coordinator {address}: process 0 cannot listen there: {reason}") from None
        return
    until = time.monotonic() + timeout_s
    while process_id is not None:
        try:
            left_s = max(until - time.monotonic(), 0.1)
            socket.create_connection((host.strip("[]"), int(port)), timeout=left_s).close()
            return
        except OSError as error:
            if time.monotonic() > until:
                reason = error.strerror or first_line(error)
                raise InputError(f"no process 0 at {address} within {timeout_s} s: {reason}") from None
        time.sleep(0.1)
