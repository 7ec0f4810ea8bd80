"""Chip facts are cited, complete and refuse what they do not know."""

import subprocess
import sys
from pathlib import Path

import pytest

from mesh.chips import CHIPS, Chip, chip_names, load_chip
from mesh.errors import InputError


@pytest.mark.parametrize("name", chip_names())
def test_every_chip_file_loads_under_its_own_name(name: str) -> None:
    """The file's name is the chip's name, and what a program may use fits what is there."""
    chip = load_chip(name)
    assert chip.name == name
    assert chip.usable_hbm_bytes_per_device * chip.devices_per_chip <= chip.hbm_bytes


@pytest.mark.parametrize("name", chip_names())
def test_every_chip_fact_has_a_source(name: str) -> None:
    """Each fact cites where it is from, and no source outlives its fact."""
    chip = load_chip(name)
    cited = {field for field in chip.__struct_fields__ if getattr(chip, field) is not None}
    assert set(chip.sources) == cited - {"name", "kind", "sources", "machines"}
    assert all(machine.source for machine in chip.machines)


def test_rates_of_a_device_are_half_the_chip_where_it_shows_two() -> None:
    """tpu7x has two devices per chip; v4 as a megacore has one, with the rates of the whole chip."""
    tpu7x, v4 = load_chip("tpu7x"), load_chip("v4")
    assert (tpu7x.device_flops_per_s("fp8"), tpu7x.device_hbm_bytes_per_s) == (4.61e15 / 2, 7.4e12 / 2)
    assert (v4.device_flops_per_s("bf16"), v4.device_hbm_bytes_per_s) == (2.75e14, 1.2e12)


def test_the_core_link_of_tpu7x_is_six_ici_links() -> None:
    """Google's documentation gives the ratio, not the rate."""
    tpu7x = load_chip("tpu7x")
    assert tpu7x.core_link_bytes_per_s == 6 * tpu7x.link_bytes_per_s


def test_an_unknown_dtype_names_what_the_chip_has() -> None:
    """A chip computes only in the dtypes of its data sheet."""
    with pytest.raises(InputError) as error:
        load_chip("v5e").device_flops_per_s("fp8")
    assert str(error.value) == "v5e has no FLOP/s for dtype 'fp8'; it has bf16, int8"


@pytest.mark.parametrize(
    ("name", "closest"),
    [("v5", "v5p, v5e, v4"), ("V4p", "v4, v5p"), ("zz", "b200, h100, h200, tpu7x, v3, v4, v5e, v5p, v6e")],
)
def test_an_unknown_chip_names_the_closest(name: str, closest: str) -> None:
    """A slip in a chip's name is answered with names that work."""
    with pytest.raises(InputError) as error:
        load_chip(name)
    assert str(error.value) == f"no chip named {name.lower()!r}; closest: {closest}"


def _own(tmp_path: Path, old: str, new: str) -> Path:
    path = tmp_path / "own.toml"
    text = (CHIPS / "v5e.toml").read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")
    return path


def test_a_chip_file_of_ones_own_loads(tmp_path: Path) -> None:
    """A user may correct a fact without touching the package."""
    chip = load_chip("v5e", _own(tmp_path, "hop_latency_s = 1.0e-6", "hop_latency_s = 5.0e-7"))
    assert isinstance(chip, Chip)
    assert chip.hop_latency_s == 5e-7


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("torus_dims = 2", "torus_dim = 2", "not a chip file: Object contains unknown field `torus_dim`"),
        ("torus_dims = 2\n", "", "not a chip file: Object missing required field `torus_dims`"),
        (
            'hop_latency_s = "jax',
            'hop_latency = "jax',
            "not a chip file: chip v5e: no source for hop_latency_s; add it under [sources]",
        ),
        (
            "hop_latency_s = 1.0e-6",
            "hop_latency_s = 0.0",
            "not a chip file: chip v5e: hop_latency_s = 0.0 must be above 0 and finite",
        ),
        (
            "hop_latency_s = 1.0e-6",
            "hop_latency_s = nan",
            "not a chip file: chip v5e: hop_latency_s = nan must be above 0 and finite",
        ),
        (
            "devices_per_chip = 1",
            "devices_per_chip = 2",
            "not a chip file: chip v5e: core_link_bytes_per_s is needed with devices_per_chip = 2, and only then",
        ),
    ],
)
def test_a_bad_chip_file_says_what_is_wrong(tmp_path: Path, old: str, new: str, message: str) -> None:
    """Unknown, missing, uncited and impossible facts are refused on loading."""
    path = _own(tmp_path, old, new)
    with pytest.raises(InputError) as error:
        load_chip("v5e", path)
    assert str(error.value) == f"{path}: {message}"


def test_a_chip_without_slices_is_refused(tmp_path: Path) -> None:
    """It would be of no use to anyone."""
    path = tmp_path / "own.toml"
    path.write_text("machines = []\n" + (CHIPS / "v5e.toml").read_text("utf-8").partition("[[machines]]")[0], "utf-8")
    with pytest.raises(InputError, match=r"chip v5e: no slice; add dims under \[\[machines\]\]"):
        load_chip("v5e", path)


def test_a_chip_file_of_another_name_or_place_is_refused(tmp_path: Path) -> None:
    """The name asked for and the file must agree, and the file must be there."""
    path = _own(tmp_path, 'name = "v5e"', 'name = "v5x"')
    with pytest.raises(InputError) as error:
        load_chip("v5e", path)
    assert str(error.value) == f"{path}: expected a chip named 'v5e', got 'v5x'"
    with pytest.raises(InputError) as error:
        load_chip("v5e", tmp_path / "none.toml")
    assert str(error.value) == f"{tmp_path / 'none.toml'}: cannot read the chip file: No such file or directory"


def test_pricing_imports_neither_numpy_nor_networkx() -> None:
    """Only the oracle needs them; importing the rest must stay quick."""
    modules = "mesh.chips, mesh.slices, mesh.pieces, mesh.collectives, strategies.book.collectives"
    code = f"import sys, {modules}; sys.exit(bool({{'numpy', 'networkx', 'jax'}} & set(sys.modules)))"
    root = str(CHIPS.parents[2])
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
