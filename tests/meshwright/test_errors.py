"""Bad input: one clear line on stderr, exit code 2, nothing lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.planned import planned

import meshwright
from planner import api
from planner.files import write_whole

ROOT = Path(__file__).parents[2]
SMALL = ["llama-3.1-8b", "--slice", "v5e:2x2", "--weights", "int8", "--kv", "int8", "--context", "1024"]
TOP = [*SMALL, "--batch", "8", "--top", "1"]
WHOLE = "expected a whole number"


def error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr of a command that must exit 2 and print nothing to stdout."""
    code = meshwright.main(arguments)
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert said.err.startswith("meshwright: ")
    assert said.err.count("\n") == 1
    return said.err.removeprefix("meshwright: ").removesuffix("\n")


USAGE = {
    "--format json": "No such option: --format",
    "plan": "Missing argument 'MODEL'; see 'meshwright plan --help'",
    "roofline llama-3.1-8b": "Missing option '--slice'; see 'meshwright roofline --help'",
    "price llama-3.1-8b --slice v5e:2x2": "Missing option '--layout'; see 'meshwright price --help'",
    "plam": "No such command 'plam'",
    "plan llama-3.1-8b --slyce v5e:2x2": "No such option: --slyce",
    "plan llama-3.1-8b --slice": "Option '--slice' requires an argument; see 'meshwright plan --help'",
    "explain a b": "Got unexpected extra argument",
}


@pytest.mark.parametrize("arguments", USAGE)
def test_wrong_usage(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage says what is wrong and where to look, whatever click adds in between."""
    said = error(capsys, *arguments.split())
    assert said.startswith(USAGE[arguments])
    assert said.endswith("--help'")


VALUES = {
    "--batch 0": "batch 0: expected a whole number from 1 to 10000000",
    "--batch -8": "batch -8: expected a whole number from 1 to 10000000",
    "--batch 99999999": "batch 99999999: expected a whole number from 1 to 10000000",
    "--batch many": f"--batch 'many': {WHOLE}, such as 64",
    "--batch 1,,8": "--batch '1,,8': a value is empty; expected values with commas between them",
    "--batch inf": f"--batch 'inf': {WHOLE}, such as 64",
    "--batch 1.5": f"--batch '1.5': {WHOLE}, such as 64",
    "--batch ٣": f"--batch '٣': {WHOLE}, such as 64",
    "--context 0": "context 0: expected a whole number from 1 to 100000000",
    "--context -1": "context -1: expected a whole number from 1 to 100000000",
    "--context 1000000000": "context 1000000000: expected a whole number from 1 to 100000000",
    "--context 1000000000000000000000": f"--context 100000000000...: {WHOLE} of at most 18 digits",
    "--context nan": f"--context 'nan': {WHOLE}, such as 64",
    "--top 0": "top 0: expected a whole number from 1 to 1000",
    "--top 3 --solver cp-sat": "--top 3: --solver cp-sat proves the best alone; expected --top 1, or no --solver",
    "--top five": f"--top 'five': {WHOLE}, such as 64",
    "--weights int7": "dtype 'int7' is not known; expected one of: f32, bf16, f16, fp8, int8, int4",
    "--kv q4": "dtype 'q4' is not known; expected one of: f32, bf16, f16, fp8, int8, int4",
    "--activations half": "dtype 'half' is not known; expected one of: f32, bf16, f16, fp8, int8, int4",
    "--phase train": "--phase 'train': expected decode, prefill or serve",
    "--objective cost": "objective 'cost' needs prices per chip and hour, such as 1.2 or v5e=1.2,v6e=2.7",
    "--objective speed": "objective 'speed' is not known; expected throughput, latency, cost",
    "--format xml": "--format 'xml': expected table, json or markdown",
    "--progress yes": "--progress 'yes': expected auto or never",
    "--slice v5e:3x4": "slice 'v5e:3x4': v5e has no slice 3x4; nearest: v5e:4x4, v5e:2x4, v5e:4x8",
    "--slice v9:2x2": "slice 'v9:2x2': no chip 'v9'; closest: v4, v3",
    "--slice v5e": "slice 'v5e': expected chip:dims, such as v5e:4x4 or h100:8",
    "--fix attention": "--fix 'attention': expected COMPONENT=TORUSAXIS:ROLE,..., such as attention=Z:B,Y:K",
    "--fix =X:B": "--fix '=X:B': expected COMPONENT=TORUSAXIS:ROLE,..., such as attention=Z:B,Y:K",
    "--fix mlp=X": "--fix 'mlp=X': 'X' is not TORUSAXIS:ROLE; expected COMPONENT=TORUSAXIS:ROLE,..., such as "
    "attention=Z:B,Y:K",
    "--fix mlp=X:F,X:D": "--fix 'mlp=X:F,X:D': torus axis X has role F already; expected one per axis",
    "--fix moe=X:F": "--fix moe: no such component; this model has attention, mlp, vocab",
    "--fix mlp=Z:F": "--fix mlp=Z: v5e:2x2 has no torus axis 'Z'; it has X, Y",
    "--program /nowhere.layout": "cannot read the layout file '/nowhere.layout': No such file or directory; expected a "
    "text file of programs",
}


@pytest.mark.parametrize("option", VALUES)
def test_bad_value(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each bad value of an option of `plan` gets its own line, whole."""
    assert error(capsys, "plan", *SMALL, *option.split()) == VALUES[option]


def test_unknown_role_names_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    """A role that no program has is refused with the roles and parts that there are."""
    said = error(capsys, "plan", *SMALL, "--fix", "mlp=X:K")
    assert said.startswith("--fix mlp=X:K: no role 'K'; expected one of ")


def test_dtype_that_the_chip_cannot_compute_in(capsys: pytest.CaptureFixture[str]) -> None:
    """A compute dtype without a rate names those that the chip has."""
    assert error(capsys, "plan", *SMALL, "--compute", "f32") == (
        "v5e has no FLOP/s for the compute dtype 'f32'; it has bf16, int8"
    )


@pytest.mark.parametrize("command", ["models", "roofline", "plan"])
def test_unknown_model_gets_the_closest_names(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt model is refused with the closest names."""
    arguments = ["lama-3.1-8b"] if command == "models" else ["lama-3.1-8b", "--slice", "v5e:2x2"]
    assert error(capsys, command, *arguments).startswith(
        'model "lama-3.1-8b": no built-in and no file of that name; the closest are llama-3.1-8b'
    )


def test_unknown_chip_and_schema(capsys: pytest.CaptureFixture[str]) -> None:
    """A chip or schema that there is none of is refused with what there is."""
    assert error(capsys, "chips", "v5x") == "no chip named 'v5x'; closest: v5p, v5e"
    known = "plan, fits, sensitivity, validation, report"
    assert error(capsys, "schema", "plane") == f"no schema 'plane'; there are: {known}"


CONFIGS = {
    "{": "not valid JSON at line 1 column 2: Expecting property name enclosed in double quotes",
    "[1]": "expected a JSON object, got [1]",
    '{"model_type": "llama"}': "field 'hidden_size' is missing: expected a whole number from 1 to 1000000000",
}


@pytest.mark.parametrize("text", CONFIGS)
def test_bad_config(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A config that is cut off, no object, or lacks a field says so, with the file."""
    file = tmp_path / "config.json"
    file.write_text(text)
    assert error(capsys, "plan", str(tmp_path), "--slice", "v5e:2x2") == f"{file}: {CONFIGS[text]}"


def test_unknown_architecture_and_binary_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An architecture that is not known is named; a binary file is no config; an empty folder has none."""
    assert error(capsys, "models", str(tmp_path)) == (
        f'folder "{tmp_path}" has no config.json: give one that has it, or the file'
    )
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "mamba"}')
    assert error(capsys, "models", str(file)).startswith(f'{file}: model_type "mamba" is not known (supported: ')
    file.write_bytes(b"\x80\x00\xff")
    assert error(capsys, "models", str(file)) == f"{file}: not text (byte 0): expected a config.json"


def test_roofline_heads_and_slices(capsys: pytest.CaptureFixture[str]) -> None:
    """KV heads that no head count allows, and a second slice, are refused."""
    said = error(capsys, "roofline", "llama-3.1-8b", "--slice", "v5e:2x2", "--kv-heads", "7")
    assert said == "attention: N=32 query heads cannot share cache_heads=7 KV heads: expected a divisor of 32"
    assert error(capsys, "roofline", "llama-3.1-8b", "--slice", "v5e:2x2,v5e:2x4") == (
        "--slice v5e:2x2,v5e:2x4: expected one slice for this command"
    )


def test_layout_program_that_breaks_a_rule_names_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A user's program that contracts a cut dim with a whole one is refused with file and line."""
    file = tmp_path / "mine.layout"
    body = "h[B, F_Y] = x[B, D] * Wi[D_X, F_Y]\n    o[B, D] {U_Y} = h[B, F_Y] * Wo[F_Y, D]"
    file.write_text(
        "program mine\n  phase: decode\n  component: mlp\n  roles: X=D Y=F\n  input: x[B, D]\n"
        f"  output: o[B, D] {{U_Y}}\n  weights: Wi Wo\n  body\n    {body}\n"
    )
    said = error(capsys, "plan", *TOP, "--program", str(file))
    assert "mine" in said
    assert "line 9" in said


@pytest.fixture(scope="module")
def plan_text() -> str:
    """A small plan file as JSON."""
    from planner.plan.planfile import encode

    found = planned("llama-3.1-8b", "v5e:2x2", batch=(8,), context=1024, weights="int8", kv="int8", top=1)
    return encode(found).decode()


def test_plan_file_of_another_version(plan_text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan file of another schema is refused with both names."""
    file = tmp_path / "plan.json"
    file.write_text(plan_text.replace("meshwright.plan/1", "meshwright.plan/9"))
    said = error(capsys, "explain", str(file))
    assert said.startswith(f"the plan file '{file}' has schema 'meshwright.plan/9'; expected 'meshwright.plan/1'")


def test_pick_out_of_range(plan_text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan number beyond those in the file names how many there are."""
    file = tmp_path / "plan.json"
    file.write_text(plan_text)
    for pick in ("0", "2"):
        said = error(capsys, "explain", str(file), "--pick", pick)
        assert said == f"--pick {pick}: expected a plan of '{file}', whose plans are numbered 1 to 1"


NONSENSE = [
    ('"axis_sizes"', '"sizes"'),
    ('"step_s": ', '"step_s": "fast", "was": '),
    ('"step_s": ', '"step_s": NaN, "was": '),
    ('"component": "mlp"', '"component": "nothing"'),
    ('"axis_names": [', '"axis_names": ["Q", '),
    ('"devices": 4', '"devices": 5'),
    ('"text": "', '"text": "nonsense '),
    ('"plans": [', '"plans": [7, '),
]


@pytest.mark.parametrize(("old", "new"), NONSENSE)
def test_plan_file_edited_into_nonsense(
    old: str, new: str, plan_text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each edit that leaves a plan file without sense is one line, not a traceback."""
    file = tmp_path / "plan.json"
    assert old in plan_text
    file.write_text(plan_text.replace(old, new, 1))
    assert "plan" in error(capsys, "explain", str(file))


@pytest.mark.parametrize("length", [0, 1, 100, 5000])
def test_truncated_plan_file(length: int, plan_text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan file that is cut off is refused as no JSON."""
    file = tmp_path / "plan.json"
    file.write_text(plan_text[:length])
    assert error(capsys, "explain", str(file)).startswith(f"the plan file '{file}' is not JSON: ")


def test_unreadable_plan_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing file, a folder and a binary file are each refused in one line."""
    binary = tmp_path / "binary"
    binary.write_bytes(bytes(range(256)))
    assert "No such file" in error(capsys, "explain", str(tmp_path / "none.json"))
    assert "Is a directory" in error(capsys, "explain", str(tmp_path))
    assert "is not JSON" in error(capsys, "explain", str(binary))
    assert "is not JSON" in error(capsys, "price", *TOP[:-2], "--layout", str(binary))


@pytest.mark.parametrize("name", ["missing/plan.json", ".", "file/plan.json"])
def test_plan_is_printed_where_its_file_cannot_be_written(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An output path that cannot be written loses nothing: the plan is printed, then one line and exit code 2."""
    (tmp_path / "file").touch()
    code = meshwright.main(["plan", *TOP, "--format", "json", "-o", str(tmp_path / name)])
    said = capsys.readouterr()
    assert code == 2
    assert len(json.loads(said.out)["plans"]) == 1
    assert said.err.startswith(f"meshwright: cannot write '{(tmp_path / name)}': ")
    assert said.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the disk fails half-way, the old file stays and no temporary one is left."""
    file = tmp_path / "plan.json"
    file.write_bytes(b"old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(meshwright.InputError, match="No space left on device"):
        write_whole(file, b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("plan.json", b"old")]


def test_written_file_keeps_mode_and_link(tmp_path: Path) -> None:
    """A file that is replaced keeps its mode, a link to it stays a link, and a new one follows the umask."""
    file, link = tmp_path / "plan.json", tmp_path / "link.json"
    file.touch(mode=0o640)
    link.symlink_to(file)
    write_whole(link, b"new")
    assert (file.read_bytes(), file.stat().st_mode & 0o777, link.is_symlink()) == (b"new", 0o640, True)
    write_whole(tmp_path / "other.json", b"")
    plain = tmp_path / "plain"
    plain.touch()
    assert (tmp_path / "other.json").stat().st_mode == plain.stat().st_mode


def test_device_is_written_to() -> None:
    """`-o /dev/null` writes to the device and leaves it one."""
    write_whole(Path("/dev/null"), b"new")
    assert Path("/dev/null").is_char_device()


def test_bug_is_one_line_and_asks_for_a_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An exception that is not about the input is one line and exit code 70; MESHWRIGHT_DEBUG=1 shows where."""

    def fail(*_: object, **__: object) -> None:
        raise KeyError("lost\nvalue")

    monkeypatch.setattr(api, "plan", fail)
    monkeypatch.delenv("MESHWRIGHT_DEBUG", raising=False)
    assert meshwright.main(["plan", *TOP]) == 70
    said = capsys.readouterr().err
    assert said == (
        "meshwright: KeyError: 'lost\\nvalue'; this is a bug in meshwright: please report it; MESHWRIGHT_DEBUG=1 shows "
        "where it happened\n"
    )
    monkeypatch.setenv("MESHWRIGHT_DEBUG", "1")
    meshwright.main(["plan", *TOP])
    assert "Traceback" in capsys.readouterr().err


def test_control_characters_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """What a user's value has in it cannot break the line or move the cursor."""
    assert error(capsys, "models", "a\x1b[2J\nb\u2028c").startswith('model "a\\u001b[2J\\nb')
    assert "\x1b" not in error(capsys, "chips", "a\x1b[2J\nb")


def test_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C is one line and exit code 130."""

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "plan", interrupt)
    assert meshwright.main(["plan", *TOP]) == 130
    assert capsys.readouterr().err == "meshwright: interrupted\n"


def test_progress_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal the progress is one line that is clear in the end; otherwise, or if told so, there is none."""
    meshwright.main(["plan", *TOP])
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    meshwright.main(["plan", *TOP])
    said = capsys.readouterr().err
    assert "searching v5e:2x2" in said
    assert said.endswith("\r\x1b[K")
    meshwright.main(["plan", *TOP, "--progress", "never"])
    assert capsys.readouterr().err == ""


def shell(script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script in which $M is the command."""
    command = f"{sys.executable} -m meshwright"
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail\nM='{command}'\n{script}"], capture_output=True, text=True, timeout=60
    )


def test_reader_that_goes_away_is_no_error() -> None:
    """A closed pipe ends the command quietly with exit code 141, as other tools end."""
    for arguments in ("schema", "models", "plan --help"):
        done = shell(f"$M {arguments} | (exec 0<&-; sleep 0.5)")
        assert (done.returncode, done.stdout, done.stderr) == (141, "", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_is_one_line() -> None:
    """stdout that cannot be written is one line and exit code 2."""
    done = shell("$M models > /dev/full")
    assert (done.returncode, done.stderr) == (2, "meshwright: cannot write to stdout: No space left on device\n")


def test_signal_during_a_search_leaves_no_traceback() -> None:
    """SIGINT in the middle of a search ends the command with exit code 130 and one line."""
    code = (
        "import meshwright, os, signal, sys, time; from planner.best import solve\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job ignores it
        "solve.make_plan = lambda *_: (os.kill(os.getpid(), signal.SIGINT), time.sleep(10))\n"
        f"sys.exit(meshwright.main({['plan', *TOP]}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "meshwright: interrupted\n")
