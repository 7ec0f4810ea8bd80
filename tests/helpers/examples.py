"""The console examples of README.md and docs/: found, run, compared, and with `--update` written anew.

python tests/helpers/examples.py --update [PAGE ...]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"(?P<slow><!-- slow -->\n+)?(?P<fence>^```console\n)(?P<text>.*?)(?=^```$)", re.DOTALL | re.MULTILINE
)
"""A console block; `<!-- slow -->` before it leaves it to the tiers `ci` and `full` (more than about three seconds)."""
SECONDS = re.compile(r"(?<=in )\d+\.\d+(?= s\b)|(?<=in )\d+(?= s\b)")
LEVELS = re.compile(r"^(level +mode +verdict +checked +broken) .*\n((?:-+ +){4}-+) .*$", flags=re.MULTILINE)
VERDICT = re.compile(r"^(\S+ +\S+ +(?:passed|failed|skipped) +\d+ +\d+) .*$")
UNSET = ("JAX_NUM_CPU_DEVICES", "COLUMNS")
"""Variables that other tests, or pytest-xdist, set."""
MEASURED = re.compile(r"temporaries|of their standard deviation off|compiled in")


def pages() -> list[Path]:
    """README.md, and every page of docs/ that has an example."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if BLOCK.search(page.read_text(encoding="utf-8"))]


def blocks(page: Path) -> list[tuple[str, bool]]:
    """The console blocks of a page, and whether each is slow."""
    found = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [(block["text"], block["slow"] is not None) for block in found]


def examples(block: str) -> list[tuple[str, str]]:
    """(command, output) pairs of a block."""
    parts = re.split(r"^\$ ((?:.*\\\n)*.*)\n", block, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def clean(text: str) -> str:
    """Without trailing spaces, seconds, and lines whose figures depend on the version of a compiler."""
    text = LEVELS.sub(r"\1\n\2", SECONDS.sub("-", text))  # columns of seconds are as wide as these are
    lines = (VERDICT.sub(r"\1", line.rstrip()) for line in text.rstrip().splitlines())
    return "\n".join(line for line in lines if not MEASURED.search(line))


def bash(command: str, cwd: Path, first: str = "") -> str:
    """What a command prints, with the `meshwright` of this environment unless `first` defines another."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {name: value for name, value in os.environ.items() if name not in UNSET}
    run = subprocess.run(
        ["bash", "-c", first + command], cwd=cwd, env={**env, "PATH": path}, capture_output=True, text=True
    )
    return run.stdout + run.stderr


def rewritten(block: str) -> str:
    """A block with what its commands print now; what differs in seconds only stays as it is."""
    said: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tests").symlink_to(ROOT / "tests")
        for command, shown in examples(block):
            now = bash(command, Path(folder))
            if now and not now.endswith("\n"):
                now += "\n"
            same = clean(now) == clean(shown)
            said.append(f"$ {command}\n" + (shown if same else "".join(f"{x.rstrip()}\n" for x in now.splitlines())))
    return "".join(said)


def main(arguments: Sequence[str]) -> int:
    """Rewrite the examples of the pages that are named, or of all."""
    if not arguments or arguments[0] != "--update":
        print(__doc__)
        return 2
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    for page in [Path(name).resolve() for name in arguments[1:]] or pages():
        before = page.read_text(encoding="utf-8")
        after = BLOCK.sub(lambda block: (block["slow"] or "") + block["fence"] + rewritten(block["text"]), before)
        if after != before:
            page.write_text(after, encoding="utf-8")
        print(f"{'written' if after != before else 'as it was'}: {page.relative_to(ROOT)}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
