"""Several processes that verify one plan: what they share, what goes wrong, and two real ones on this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import jax
import numpy as np
import pytest
from helpers.planned import planned

from executor.devices import Unavailable
from executor.processes.abort_guard import why_ended
from executor.processes.agreement import ProcessGroup, SingleProcess, merged
from executor.processes.join import Hosts
from executor.processes.process_arrays import fetch, put, share
from executor.verdict import Finding, verdict
from mesh.errors import InputError
from meshwright.hosts import hosts_of
from planner.api import plan
from planner.plan.planfile import encode

ROOT = Path(__file__).parents[3]
QUICK = " ".join(flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag)
"""The flags of all tests (conftest), but for the number of devices, which each process says itself."""
DEADLINE_S = 100  # for machines with much else to do; a run takes a few seconds


# Options


ALL = {"coordinator": "10.0.0.1:1234", "processes": "2", "process_id": "1"}
ENVIRONMENT = {"JAX_COORDINATOR_ADDRESS": "[::1]:99", "JAX_NUM_PROCESSES": "3", "JAX_PROCESS_ID": "0"}


@pytest.mark.parametrize(
    ("options", "environ", "expected"),
    [
        ({}, {}, None),
        ({}, {"JAX_COORDINATOR_ADDRESS": "h:1"}, None),
        (ALL, {}, Hosts(coordinator="10.0.0.1:1234", processes=2, process_id=1)),
        ({}, ENVIRONMENT, Hosts(coordinator="[::1]:99", processes=3, process_id=0)),
        ({"process_id": "2"}, ENVIRONMENT, Hosts(coordinator="[::1]:99", processes=3, process_id=2)),
    ],
)
def test_options_come_before_the_environment_which_counts_if_it_is_complete(
    options: Mapping[str, str], environ: Mapping[str, str], expected: Hosts | None
) -> None:
    """Without either there is one process."""
    assert hosts_of(**options, environ=environ) == expected


def test_a_cluster_says_what_is_not_given() -> None:
    """`--distributed` leaves the rest to JAX."""
    assert hosts_of(distributed=True, environ={}) == Hosts()
    assert hosts_of(process_id="3", distributed=True, timeout="5", environ={}) == Hosts(process_id=3, timeout_s=5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"process_id": None}, r"--process-id \(or JAX_PROCESS_ID\) is missing: each process needs --coordinator"),
        ({"process_id": "2"}, "process_id 2: expected 0 to 1 of 2 processes"),
        ({"process_id": "-1"}, "process_id -1: expected 0 to 1 of 2 processes"),
        ({"process_id": "one"}, "--process-id 'one': expected a whole number"),
        ({"processes": "0"}, "processes 0: expected at least 1"),
        ({"coordinator": "localhost"}, "coordinator 'localhost': expected HOST:PORT of process 0"),
        ({"coordinator": "h:70000"}, "coordinator 'h:70000': expected HOST:PORT of process 0"),
        ({"timeout": "0"}, "timeout 0: expected at least 1 second"),
    ],
)
def test_bad_options_name_what_is_expected(changes: Mapping[str, Any], message: str) -> None:
    """A clear line before anything starts."""
    with pytest.raises(InputError, match=message):
        hosts_of(**{**ALL, **changes}, environ={})


# Devices and arrays


@dataclass(frozen=True)
class Device:
    """A device of some process."""

    process_index: int


@pytest.mark.parametrize(("wanted", "parts"), [(8, (4, 4)), (2, (1, 1)), (3, (2, 1))])
def test_each_process_gives_its_share_of_the_devices(wanted: int, parts: Sequence[int]) -> None:
    """However many devices each has."""
    devices: Any = [Device(i) for i in (0, 1) for _ in range(16)]
    assert [d.process_index for d in share(devices, wanted)] == [0] * parts[0] + [1] * parts[1]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (1, "devices for 1 of the 2 processes: start at most 1"),
        (16, "needs 16 host devices in 2 processes, there are 8"),
    ],
)
def test_devices_that_are_not_enough_for_all_processes_are_said(wanted: int, message: str) -> None:
    """Too few devices, or too few for a process to have one."""
    devices: Any = [Device(i) for i in (0, 1) for _ in range(4)]
    with pytest.raises(Unavailable, match=message):
        share(devices, wanted)


def test_in_one_process_arrays_are_put_and_fetched_as_ever() -> None:
    """`put` takes trees."""
    where = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    found = put({"a": np.arange(3), "b": np.ones(2)}, {"a": where, "b": where})
    assert fetch(found["a"]).tolist() == [0, 1, 2]
    assert fetch(np.ones(2)).tolist() == [1, 1]


# Agreeing, with threads for processes


@dataclass
class Store:
    """A key-value store with the two methods that are used of JAX's."""

    values: dict[str, str] = field(default_factory=dict)

    def key_value_set(self, key: str, value: str) -> None:
        """Keep a value."""
        assert key not in self.values
        self.values[key] = value

    def blocking_key_value_get(self, key: str, within_ms: int) -> str:
        """The value, or an error where it does not come in time, as of JAX's."""
        until = time.monotonic() + within_ms / 1000
        while key not in self.values:
            if time.monotonic() > until:
                raise RuntimeError("DEADLINE_EXCEEDED: GetKeyValue() timed out")
            time.sleep(0.01)
        return self.values[key]


class Left(Exception):
    """What ends a process here."""


class Here:
    """In place of `AbortGuard`."""

    log = ""

    def end(self, line: str, code: int = 2) -> None:
        """Leave with this line."""
        raise Left(line)


def agree(*runs: Any, processes: Sequence[int] = (2, 2), timeout_s: int = 20) -> list[Any]:
    """What each of two processes gets from its run, which takes a `ProcessGroup`; errors are values."""
    store, begin = Store(), Barrier(2)
    found: list[Any] = [None, None]

    def one(i: int) -> None:
        begin.wait()
        here: Any = Here()
        try:
            found[i] = runs[i](ProcessGroup(store, processes[i], i, timeout_s, here))
        except Exception as error:
            found[i] = error

    threads = [Thread(target=one, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    return found


GOOD = verdict("numerics", "manual", 3, (), ("a note",))
BAD = verdict("numerics", "manual", 3, (Finding(what="Q", promised="1", found="2"),))


def fail(error: Exception) -> Any:
    """Raise the error."""
    raise error


def test_a_level_holds_where_it_holds_in_every_process() -> None:
    """The level is that of process 0, unless another found something."""
    assert agree(*[lambda t: t.level("numerics", lambda: GOOD)] * 2) == [GOOD, GOOD]
    found = agree(lambda t: t.level("numerics", lambda: GOOD), lambda t: t.level("numerics", lambda: BAD))
    assert found[0] == found[1] == merged([GOOD, BAD])
    assert found[0].status == "failed"
    assert found[0].findings == (Finding(what="process 1: Q", promised="1", found="2"),)
    assert merged([BAD, BAD]) == BAD


def test_the_compilers_level_runs_in_process_0_and_timing_in_no_several() -> None:
    """The others take its verdict, and its errors."""
    never = lambda: fail(AssertionError("runs"))  # noqa: E731
    assert (
        agree(lambda t: t.level("tpu-compiler", lambda: GOOD), lambda t: t.level("tpu-compiler", never)) == [GOOD] * 2
    )
    missing = agree(*[lambda t: t.level("tpu-compiler", lambda: fail(Unavailable("no libtpu")))] * 2)
    assert [type(e) for e in missing] == [Unavailable] * 2
    assert list(map(str, missing)) == ["no libtpu", "process 0: no libtpu"]
    assert [str(e) for e in agree(*[lambda t: t.level("timing", never)] * 2)] == [
        "timing runs in one process, and this is one of 2"
    ] * 2


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (InputError("no file"), InputError, "process 1: no file"),
        (Unavailable("no devices"), Unavailable, "process 1: no devices"),
        (MemoryError("all gone"), RuntimeError, "process 1: MemoryError: all gone"),
    ],
)
def test_what_is_raised_in_one_process_is_raised_in_all(error: Exception, kind: type, told: str) -> None:
    """With the number of the process in those where all is well."""
    found = agree(lambda t: t.level("numerics", lambda: GOOD), lambda t: t.level("numerics", lambda: fail(error)))
    assert (type(found[0]), str(found[0])) == (kind, told)
    assert found[1] is error


def test_what_must_be_the_same_is_named_where_it_is_not() -> None:
    """In every process alike."""
    found = agree(*[lambda t, x=x: t.same(lambda: x, lambda x: {"a": "1", "plan": x}) for x in ("ab", "cd")])
    assert {str(e) for e in found} == {
        "process 1 has another plan than process 0: cd and ab; every process must be started alike"
    }
    assert agree(*[lambda t: t.same(lambda: t.process_id, lambda _: {"plan": "x"})] * 2) == [0, 1]


def test_another_number_of_processes_is_said() -> None:
    """Nobody waits for a process that no other knows of."""
    found = agree(*[lambda t: t.same(lambda: 1, lambda _: {})] * 2, processes=(2, 3))
    assert list(map(str, found)) == [
        "process 0 is one of 2, process 1 one of 3; the number of processes must be the same everywhere",
        "process 1 is one of 3, process 0 one of 2; the number of processes must be the same everywhere",
    ]


def test_a_process_that_is_never_done_is_not_waited_for_without_end() -> None:
    """The other leaves after the timeout."""
    found = agree(lambda t: t.level("numerics", lambda: GOOD), lambda _: "stuck", timeout_s=1)
    assert str(found[0]) == "process 1 is not done 1 s (the timeout) after this one was"


def test_alone_there_is_nobody_to_agree_with() -> None:
    """What runs is what is given."""
    alone = SingleProcess()
    assert alone.same(lambda: 3, lambda _: {}) == 3
    assert alone.level("timing", lambda: GOOD) == GOOD
    assert alone.last(lambda: 1) == 1


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (
            "The following tasks are unhealthy (stopped sending heartbeats):\n1\nThe tasks have crashed",
            "process 1 ended",
        ),
        ("ALREADY_EXISTS: a request from a newer incarnation", "two processes have the same process id"),
        ("INVALID_ARGUMENT: Unexpected task registered with task=2", "process 2 is one too many"),
        ("DEADLINE_EXCEEDED\n\nRPC: /xla.CoordinationService/RegisterTask", "not all came: each needs the same"),
        ('RPC: PollForError\n"Socket closed"', "process 0, the coordinator, ended before this one was done"),
        ("E1 noise\nF1130 Check failed: x == y\n    @ 0x1 main", "JAX ended the process: F1130 Check failed: x == y"),
    ],
)
def test_jaxs_own_pages_become_a_line(log: str, line: str) -> None:
    """As jaxlib 0.10 writes them."""
    assert why_ended(log, "all came").startswith(line)


# Two real processes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plan, another one, and one that was edited."""
    path = tmp_path_factory.mktemp("hosts")
    for name, batch in (("plan", 8), ("other", 16)):
        (path / f"{name}.json").write_bytes(
            encode(planned("llama-3.1-8b", "v5e:2x2", batch=(batch,), context=1024, top=1))
        )
    edited = json.loads((path / "plan.json").read_bytes())
    edited["plans"][0]["memory"]["weights_bytes"] *= 2
    (path / "edited.json").write_text(json.dumps(edited))
    return path


@pytest.fixture
def address() -> str:
    """A free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def start(command: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    """A process with quick compiles, and devices by our own count."""
    environ = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy") and k != "JAX_NUM_CPU_DEVICES"}
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env={**environ, "XLA_FLAGS": QUICK, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(*processes: subprocess.Popen[str]) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each; none is left behind."""
    try:
        return [(p.wait(DEADLINE_S), *p.communicate(timeout=DEADLINE_S)) for p in processes]
    finally:
        for p in processes:
            p.kill()


def verify(folder: Path, address: str, *each: str, processes: int = 2) -> list[tuple[int, str, str]]:
    """`verify` in processes 0, 1, ... with these arguments."""
    common = ["--coordinator", address, "--processes", str(processes)]
    return ended(
        *(
            start(["-m", "meshwright", "verify", *a.split(), *common, "--process-id", str(i)], folder)
            for i, a in enumerate(each)
        )
    )


@pytest.mark.slow
def test_two_processes_verify_a_plan_and_the_first_speaks(folder: Path, address: str) -> None:
    """Numerics and collectives hold on a mesh that spans both; only process 0 prints and writes."""
    what = "plan.json --level numerics,collectives --format json -o"
    first, second = verify(folder, address, f"{what} 0.json", f"{what} 1.json")
    assert second == (0, "", "")
    assert (first[0], first[2]) == (0, "")
    report = json.loads(first[1])
    assert json.loads((folder / "0.json").read_text()) == report
    assert not (folder / "1.json").exists()
    assert report["summary"].endswith(", in 2 processes")
    assert [(r["level"], r["status"], r["checked"] > 0) for r in report["levels"]] == [
        ("plan", "passed", True), ("numerics", "passed", True), ("collectives", "passed", True),
    ]  # fmt: skip


def test_an_edited_plan_fails_in_both(folder: Path, address: str) -> None:
    """Exit 1, which process 0 explains."""
    first, second = verify(folder, address, "edited.json", "edited.json")
    assert (first[0], first[2]) == (1, "")
    assert "the plan does NOT hold" in first[1]
    assert second == (1, "", "")


@pytest.mark.slow
def test_different_plans_are_bad_input_in_both(folder: Path, address: str) -> None:
    """Both say the same line."""
    first, second = verify(folder, address, "plan.json", "other.json")
    assert first == second
    assert first[:2] == (2, "")
    assert first[2].startswith("meshwright: process 1 has another plan than process 0: ")
    assert first[2].count("\n") == 1


@pytest.mark.slow
def test_a_coordinator_that_is_not_there_is_not_waited_for_without_end(folder: Path, address: str) -> None:
    """A line with the address and the time."""
    verify = "-m meshwright verify plan.json --timeout 1 --processes 2 --process-id 1 --coordinator"
    process = start([*verify.split(), address], folder)
    assert ended(process) == [(2, "", f"meshwright: no process 0 at {address} within 1 s: Connection refused\n")]


def test_a_port_that_is_taken_is_said(folder: Path) -> None:
    """JAX itself would crash."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        (found,) = verify(folder, address, "plan.json", processes=2)
    assert found[0] == 2
    assert found[2] == f"meshwright: --coordinator {address}: process 0 cannot listen there: Address already in use\n"


DIES = """
import os, signal, sys
from executor.processes.join import Hosts, joined
with joined(Hosts(coordinator=sys.argv[1], processes=2, process_id=int(sys.argv[2]))) as together:
    together.same(lambda: 0, lambda _: {}) if len(sys.argv) > 3 else None
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "line"),
    [
        (0, "process 0, the coordinator, ended before this one was done"),
        (1, "process 1 ended before it was done, or answers no more"),
    ],
)
def test_when_a_process_dies_the_other_says_so(victim: int, line: str, folder: Path, address: str) -> None:
    """Exit 2 and a line, instead of JAX's abort and pages; at once for the coordinator, else after some seconds."""
    other = str(1 - victim)
    survivor = f"-m meshwright verify plan.json --timeout 15 --coordinator {address} --processes 2 --process-id"
    found = ended(start(["-c", DIES, address, str(victim)], folder), start([*survivor.split(), other], folder))
    assert found == [(-9, "", ""), (2, "", f"meshwright: {line}\n")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "slice_name", "phase", "processes"),
    [
        ("mixtral-8x7b", "v5e:4x4", "prefill", 2),
        ("llama-3.1-70b", "v5e:4x4", "decode", 3),
        ("llama-3.1-70b", "v5p:4x4x4", "decode", 4),
    ],
)
def test_more_processes_and_plans(
    model: str, slice_name: str, phase: str, processes: int, tmp_path: Path, address: str
) -> None:
    """Prefill and the caches' way into decode, experts, processes with unequal shares."""
    found = plan(model, slice_name, phase=phase, batch=[32], context=2048, top=1)
    (tmp_path / "plan.json").write_bytes(encode(found))
    what = "plan.json --level numerics,collectives --format json"
    first, *rest = verify(tmp_path, address, *[what] * processes, processes=processes)
    assert (first[0], first[2]) == (0, ""), first
    assert rest == [(0, "", "")] * (processes - 1)
    assert json.loads(first[1])["holds"]
