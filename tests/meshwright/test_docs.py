"""README.md and docs/: every example prints what is shown, every link leads somewhere, and the reference is whole."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.examples import ROOT, bash, blocks, clean, examples, pages

import meshwright
from meshwright.commandline import Argument
from meshwright.schemas import SCHEMAS, schema_of
from strategies.layoutfile import builtin_programs
from strategies.role_words import MEANINGS

_SPEC = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
assert _SPEC
assert _SPEC.loader
generate = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(generate)

WRITTEN = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(ROOT / name / "README.md" for name in ("mesh", "strategies", "planner", "executor", "meshwright")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

PLAN = "plan llama-3.1-70b --slice v5e:4x4 --weights int8 --kv int8 --batch 64 --top 1"


def cases() -> list[object]:
    """Every block, by its page and its first command."""
    return [
        pytest.param(block, id=f"{page.stem}: {block.splitlines()[0][2:50]}", marks=[pytest.mark.slow] if slow else [])
        for page in pages()
        for block, slow in blocks(page)
    ]


def arguments_of(command: str) -> list[str]:
    """The arguments of the `meshwright` that a command begins with, as its shell would pass them; none of another."""
    own = re.split(r" (?=\||\d?>)", command.replace("\\\n", ""))[0]  # up to a pipe or redirection
    return shlex.split(own)[1:] if own.startswith("meshwright ") else []


def in_process(command: str, cwd: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """What a command prints whose `meshwright` is called here: a shell function says what it said, where it did."""
    arguments = arguments_of(command)
    if not arguments:
        return bash(command, cwd)
    capfd.readouterr()
    code = meshwright.main(arguments)
    for name, said in zip(("stdout", "stderr"), capfd.readouterr(), strict=True):
        (cwd / name).write_text(said, encoding="utf-8")
    return bash(command, cwd, f"meshwright() {{ cat stdout; cat stderr >&2; return {code}; }}\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to be in, with the tests' cases."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)  # processes of pytest-xdist have one of 80
    return tmp_path


@pytest.mark.parametrize("block", cases())
def test_an_example_prints_what_is_shown(block: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Running a block's commands in order gives the block's text, but for the seconds of a search."""
    pairs = examples(block)
    assert pairs
    if "verify" in block and importlib.util.find_spec("libtpu") is None:
        pytest.skip("needs the TPU compiler: the extra [tpu]")
    for command, shown in pairs:
        assert clean(in_process(command, folder, capfd)) == clean(shown), command


@pytest.mark.parametrize("word", ["roofline llama-2-13b", pytest.param("column-mlp.layout", marks=pytest.mark.slow)])
def test_an_example_in_processes_of_its_own(word: str, folder: Path) -> None:
    """The installed command prints the same: to a reader that goes away after ten lines, and on both streams."""
    found = [block for page in pages() for block, _ in blocks(page) if word in block]
    assert found
    for command, shown in [pair for block in found for pair in examples(block)]:
        assert clean(bash(command, folder)) == clean(shown), command


PYTHON = re.compile(r"(?P<slow><!-- slow -->\n+)?^```python\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(found["text"], id=page.stem, marks=[pytest.mark.slow] if found["slow"] else [])
        for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*/*.md"))]  # architecture.md has parts of files
        for found in PYTHON.finditer(page.read_text(encoding="utf-8"))
    ],
)
def test_a_script_runs(script: str, folder: Path) -> None:
    """The Python of a page runs beside the plan file of the start; what it says that it prints is on the page."""
    assert meshwright.main([*PLAN.split(), "-o", "plan.json"]) == 0
    (folder / "script.py").write_text(script, encoding="utf-8")
    said = bash("python script.py; echo exit $?", folder)
    assert said.endswith("exit 0\n"), said
    if "prepare_environment" in script:
        assert said.splitlines()[0] in (ROOT / "docs" / "how-to" / "specs-in-jax.md").read_text(encoding="utf-8")


def test_readme_is_short() -> None:
    """README.md has at most 150 lines of 100 columns."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 100] == []


def setup_commands() -> list[str]:
    """The README's commands that begin with a new environment, each on one line."""
    readme = re.sub(r" *\\\n *", " ", (ROOT / "README.md").read_text(encoding="utf-8"))
    return re.findall(r"^    (python3 -m venv .*)$", readme, re.MULTILINE)


def test_readme_has_its_two_commands() -> None:
    """The README's first two commands set up everything: one plans Llama-3.1-70B, one runs the tests."""
    plan, tests = setup_commands()
    assert "meshwright plan llama-3.1-70b" in plan
    assert tests.endswith("-m pytest")


def test_ci_runs_the_readmes_test_command() -> None:
    """.ci/run holds the README's test command to the letter."""
    assert setup_commands()[1] in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", generate.PAGES)
def test_a_generated_page_is_what_the_code_gives(page: str) -> None:
    """A generated page is written again after a change: `python docs/generate.py`."""
    assert (generate.FOLDER / page).read_text(encoding="utf-8") == generate.PAGES[page]()


def test_reference_has_every_tensor() -> None:
    """Every weight and cache of the programs that come with meshwright is in the table of names."""
    names = " ".join(name for name, _, _ in generate.TENSORS)
    for program in builtin_programs():
        component = "vocab" if program.component in ("embed", "unembed") else program.component
        if component != "block":
            assert all(f"{component}/{tensor}" in names for tensor in (*program.weights, *program.cache)), program.name


def test_reference_has_every_option_and_every_field() -> None:
    """No option of a command and no field of a file is left out."""
    options = (generate.FOLDER / "reference" / "options.md").read_text(encoding="utf-8")
    for name, one, _ in generate.commands():
        own = options.partition(f"\n## {name}\n")[2].partition("\n## ")[0].replace("\\|", "|")
        assert own, name
        for parameter in one.params:
            spelt = parameter.human_readable_name if isinstance(parameter, Argument) else parameter.opts[-1]
            assert re.search(rf"[` ]{re.escape(spelt)}[` ]", own), (name, spelt)
    files = (generate.FOLDER / "reference" / "plan-file.md").read_text(encoding="utf-8")
    for name in SCHEMAS:
        for kind, of in schema_of(name)["$defs"].items():
            own = files.partition(f"\n### {name}: {kind}\n")[2].partition("\n### ")[0]
            assert all(f"| `{field}` |" in own for field in of.get("properties", {})), (name, kind)


def test_every_word_of_a_layout_is_explained() -> None:
    """The words that tables use are in the glossary and on the page about layouts."""
    terms = {term["word"] for term in generate.all_terms()}
    page = (ROOT / "docs" / "how-to" / "read-a-layout.md").read_text(encoding="utf-8")
    assert [word for word in MEANINGS if word not in terms or f"\n| {word} | " not in page] == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """A relative link names a file of the repository, and a heading in it."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_linked() -> None:
    """docs/index.md leads to every page."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    found = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")} - {"index.md"}
    assert {name for name in found if f"({name})" not in index} == set()
