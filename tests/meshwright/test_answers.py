"""Answers that a caller holds: they read as they are called, explain, save and load themselves, and make tables."""

from __future__ import annotations

import ast
import builtins
import inspect
from pathlib import Path
from typing import Any

import pytest

import meshwright
from meshwright.answers import Answer
from planner import api

SMALL = {"batch": 16, "context": 1024, "weights": "int8", "top": 2}


@pytest.fixture(scope="module")
def plans() -> meshwright.Plans:
    """Two plans of Llama-3.1-8B on v5e:2x2."""
    return meshwright.plan("llama-3.1-8b", "v5e:2x2", **SMALL)  # type: ignore[arg-type]


def test_a_call_reads_as_it_works(plans: meshwright.Plans) -> None:
    """One batch is a number; the answer has the planner's fields, and its plans are counted, indexed and iterated."""
    plain = api.plan("llama-3.1-8b", "v5e:2x2", **SMALL)  # type: ignore[arg-type]
    assert plans.best.cost == plain.plans[0].cost
    assert plans.best.specs == plain.plans[0].specs
    assert (len(plans), plans[1], list(plans)) == (2, plans.plans[1], list(plans.plans))


def test_a_query_is_asked_in_place_of_its_words(plans: meshwright.Plans) -> None:
    """The same query gives the same plans; the functions that share it take it."""
    query = meshwright.query("llama-3.1-8b", "v5e:2x2", **SMALL)  # type: ignore[arg-type]
    assert meshwright.plan(query).plans == plans.plans
    assert meshwright.fits(query).slices[0].slice == "v5e:2x2"
    assert meshwright.pareto(query).plans[0].batch == 16


def test_a_keyword_that_is_not_known_is_named() -> None:
    """As Python itself does it, with those that there are."""
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'batches'.*batch"):
        meshwright.plan("llama-3.1-8b", "v5e:2x2", batches=[16])  # type: ignore[call-arg]


def test_a_query_takes_no_words_beside_it() -> None:
    """They would be lost: what is asked is said once."""
    query = meshwright.query("llama-3.1-8b", "v5e:2x2", batch=16)
    for ask in (meshwright.plan, meshwright.pareto, meshwright.fits):
        with pytest.raises(TypeError, match="a Query says all that is asked"):
            ask(query, batch=8)
        with pytest.raises(TypeError, match="a Query says all that is asked"):
            ask(query, "v5e:2x4")


@pytest.mark.parametrize("word", ["weights", "kv", "activations", "compute", "phase", "cuts", "constants"])
def test_an_empty_word_is_bad_input_and_no_default(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Only what was not given has a default; the command says so in one line."""
    with pytest.raises(meshwright.InputError, match=r"''"):
        meshwright.query("llama-3.1-8b", "v5e:2x2", **{word: ""})  # type: ignore[misc]
    assert meshwright.main(["plan", "llama-3.1-8b", "--slice", "v5e:2x2", f"--{word}", ""]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_answers_are_short_where_they_are_shown(plans: meshwright.Plans) -> None:
    """A `repr` is one short line; in a notebook there is a table; `report` and `explain` are the commands' texts."""
    assert repr(plans).startswith("<Plans by throughput: Plan: llama-3.1-8b on v5e:2x2, decode, batch 16, context 1024")
    assert "\n" not in repr(plans)
    assert "\n" not in repr(plans.best)
    assert "<table>" in plans._repr_html_()
    assert "Search and constants" in str(plans.report())
    assert "Weights and caches" in str(plans.best.explain())
    assert plans.best.explain().markdown().count("| ") > 20
    assert "<table>" in plans.best.explain()._repr_html_()


def test_what_is_saved_is_loaded(plans: meshwright.Plans, tmp_path: Path) -> None:
    """`save` takes text and paths, and `load` gives an equal value with the same methods."""
    assert plans.save(str(tmp_path / "plan.json")) == tmp_path / "plan.json"
    again = meshwright.load(tmp_path / "plan.json")
    assert again == plans
    assert again.best.explain().blocks
    fits = meshwright.fits("llama-3.1-8b", "v5e:2x2")
    assert meshwright.load(fits.save(tmp_path / "fits.json")) == fits
    found = meshwright.sensitivity(tmp_path / "plan.json", swing=0.1)
    assert meshwright.load(found.save(tmp_path / "sensitivity.json")) == found
    assert found.rows()[0]["quantity"] == "FLOP/s"


def test_chip_and_layout_files_are_loaded_too(tmp_path: Path) -> None:
    """Told by their suffix; other files are refused with what is known."""
    from mesh.chips import CHIPS

    assert meshwright.load(CHIPS / "v5e.toml").name == "v5e"
    assert meshwright.load(Path(__file__).parents[1] / "cases" / "column-mlp.layout")[0].name == "mlp-column"
    (tmp_path / "other.json").write_text('{"schema": "something/1"}')
    with pytest.raises(meshwright.InputError, match=r"schema 'something/1'; expected one of meshwright.plan, "):
        meshwright.load(tmp_path / "other.json")


def test_rows_are_the_plans_figures(plans: meshwright.Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    """One mapping per plan, per slice, per step; without pandas the frame is an ImportError."""
    row = plans.rows()[0]
    assert (row["slice"], row["step_s"]) == ("v5e:2x2", plans.best.cost.step_s)
    assert len(plans.best.rows()) == len(plans.best.cost.steps)
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "pandas":
            raise ImportError("No module named 'pandas'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="pandas"):
        plans.to_dataframe()


def test_rows_become_a_frame(plans: meshwright.Plans) -> None:
    """Where pandas is installed."""
    pytest.importorskip("pandas")
    assert list(plans.to_dataframe()["plan"]) == [1, 2]


def test_every_kind_of_answer_has_its_own_text() -> None:
    """No kind inherits a method that is not there."""
    kinds = [kind for kind in Answer.__subclasses__() if kind.__module__ == "meshwright.answers"]
    assert len(kinds) == 5
    for kind in kinds:
        assert {"rows", "_blocks", "__repr__"} <= vars(kind).keys(), kind


def test_public_names_are_written_once_for_types_and_once_for_loading() -> None:
    """What type checkers see is what is loaded."""
    tree = ast.parse(Path(meshwright.__file__).read_text("utf-8"))
    (block,) = [n for n in tree.body if isinstance(n, ast.If)]
    typed = {a.name: n.module for n in block.body if isinstance(n, ast.ImportFrom) for a in n.names}
    assert typed == meshwright._HOMES


def test_errors_share_a_base() -> None:
    """`except meshwright.MeshwrightError` catches what is raised on purpose."""
    assert issubclass(meshwright.InputError, meshwright.MeshwrightError)
    assert issubclass(meshwright.NoFleet, meshwright.NothingFits)
    assert issubclass(meshwright.NothingFits, meshwright.MeshwrightError)


def test_help_lists_every_keyword() -> None:
    """The help of a public function says what each of its keywords is, and that its answer has methods."""
    from planner import api
    from planner.query.query import QueryOptions, SearchOptions

    for function, options in (
        (meshwright.plan, api.PlanOptions),
        (meshwright.pareto, QueryOptions),
        (meshwright.serve, api.ServeOptions),
        (meshwright.fleet, api.FleetOptions),
        (meshwright.price, api.PriceOptions),
        (meshwright.fits, QueryOptions),
    ):
        text = str(function.__doc__)
        assert [name for name in options.__annotations__ if name not in text] == [], function.__name__
        if options is not api.PriceOptions:
            assert [name for name in SearchOptions.__annotations__ if name not in text] == [], function.__name__
    assert inspect.signature(meshwright.plan).return_annotation == "Plans"
