"""`meshwright book`: the chapter's closed forms for a model on a slice."""

from __future__ import annotations

import json

import pytest

from mesh.slices import parse_slice
from meshwright.cli import main
from strategies.book import crossover, intensity, roofline
from strategies.book.closed_forms import ClosedForms, closed_forms
from strategies.models.configs import load_model
from strategies.models.workload import Dtypes


def forms(model: str, slice_name: str, batch: int = 32, **dtypes: str) -> dict[str, float]:
    """Values by name."""
    found = closed_forms(load_model(model), parse_slice(slice_name), batch=batch, context=8192, dtypes=Dtypes(**dtypes))
    return {form.name: form.value for form in found.forms}


def test_the_values_are_those_of_the_chapter() -> None:
    """LLaMA-2 13B on v5e: 26 GB in bf16, 0.8 MB of KV per token, a critical batch of 240, F/(C/W) and F/(B beta)."""
    found = forms("llama-2-13b", "v5e:4x4")
    assert found["parameters"] == pytest.approx(26e9, rel=2e-3)
    assert found["KV cache of a token"] == 819200
    assert found["critical batch, FLOPs-bound above"] == pytest.approx(240, rel=2e-3)
    assert found["attention intensity, decode"] == pytest.approx(1, rel=1e-3)
    assert found["attention intensity, prefill"] == 4096
    one, two = (f"ICI bound of 1D over {axes}" for axes in ("1 axis", "2 axes"))
    assert found[f"{one}, large batches"] == pytest.approx(13824 / (197e12 / 45e9))
    assert found[f"{two}, large batches"] == 2 * found[f"{one}, large batches"]
    assert found[f"{one}, decode"] == pytest.approx(13824 / (32 * 820 / 45))
    assert found["latency-bound below, over 4"] == pytest.approx(4 * 45e9 * 1e-6)


def test_the_crossover_is_the_books_on_three_axes() -> None:
    """18 F/D of an MLP that is not gated, 27 F/D of one that is; 2D is no question on one axis."""
    model = load_model("llama-3.1-70b")
    assert forms("llama-3.1-70b", "v5p:4x4x4")["crossover from 1D to 2D"] == 27 * model.groups[0].mlp.F / model.D
    assert "crossover from 1D to 2D" not in forms("llama-3.1-8b", "h100:8")


def test_a_ring_has_twice_a_lines_bandwidth_and_one_chip_has_no_links() -> None:
    """The slowest axis counts: 8x16 of v5e is a line of 8 and a ring of 16."""

    def ici(name: str) -> float | None:
        found: ClosedForms = closed_forms(
            load_model("llama-3.1-8b"), parse_slice(name), batch=8, context=128, dtypes=Dtypes()
        )
        return found.ici_bytes_per_s

    assert (ici("v5e:16x16"), ici("v5e:8x16"), ici("v5e:1x1")) == (90e9, 45e9, None)


def test_every_function_is_one_of_the_books() -> None:
    """Each line names a function that is there, under that name."""
    found = closed_forms(
        load_model("qwen3-30b-a3b"), parse_slice("v5p:4x4x8"), batch=64, context=1024, dtypes=Dtypes(weights="int8")
    )
    for form in found.forms:
        assert any(hasattr(module, form.function) for module in (crossover, intensity, roofline)), form


def test_the_command_prints_a_table_markdown_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The same forms in each."""
    said = {}
    for style in ("table", "markdown", "json"):
        assert main(["book", "llama-2-13b", "--slice", "v5e:4x4", "--format", style]) == 0
        said[style] = capsys.readouterr().out
    names = [form["name"] for form in json.loads(said["json"])["forms"]]
    assert len(names) == 14
    for name in names:
        assert name in said["table"]
        assert f"| {name} " in said["markdown"]
    assert "`crossover_chips`" in said["markdown"]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("--batch 0", "batch 0: expected a whole number from 1 to 10000000"),
        ("--batch many", "--batch 'many': expected a whole number, such as 64"),
        ("--compute fp4", "v5e has no FLOP/s for dtype 'fp4'; it has bf16, int8"),
        ("--weights fp3", "dtype 'fp3' is not known; expected one of: f32, bf16, f16, fp8, int8, int4"),
    ],
)
def test_bad_input_is_one_clear_line(given: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With exit code 2."""
    assert main(["book", "llama-2-13b", "--slice", "v5e:4x4", *given.split()]) == 2
    assert capsys.readouterr().err == f"meshwright: {line}\n"
