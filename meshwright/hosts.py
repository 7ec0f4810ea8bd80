"""The options of `verify` by which one of several processes finds the others, and their environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping

from executor.processes.join import TIMEOUT_S, Hosts
from mesh.errors import InputError
from meshwright.commandline import whole

VARIABLES = {
    "coordinator": "JAX_COORDINATOR_ADDRESS",
    "processes": "JAX_NUM_PROCESSES",
    "process_id": "JAX_PROCESS_ID",
}
"""What says an option's value where the option does not."""

_ALL_ALIKE = "each process needs --coordinator, --processes and --process-id, or --distributed in a cluster JAX knows"


def hosts_of(
    *,
    coordinator: str | None = None,
    processes: str | None = None,
    process_id: str | None = None,
    distributed: bool = False,
    timeout: str = str(TIMEOUT_S),
    environ: Mapping[str, str] = os.environ,
) -> Hosts | None:
    """Read the options, and the environment where they are silent; None: this is the only process.

    Without an option the environment counts only if it says everything. Raises `InputError`.
    """
    timeout_s = whole("--timeout", timeout)
    options = {"coordinator": coordinator, "processes": processes, "process_id": process_id}
    texts = {name: text or environ.get(VARIABLES[name]) or None for name, text in options.items()}
    missing = [f"{_option(name)} (or {VARIABLES[name]})" for name, text in texts.items() if not text]
    if missing and not distributed:
        if not any(options.values()):
            return None
        raise InputError(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: {_ALL_ALIKE}")
    return Hosts(
        coordinator=texts["coordinator"],
        processes=_number("processes", texts),
        process_id=_number("process_id", texts),
        timeout_s=timeout_s,
    )


def _number(name: str, texts: Mapping[str, str | None]) -> int | None:
    text = texts[name]
    return whole(_option(name), text) if text else None


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
