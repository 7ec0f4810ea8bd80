"""The front door is typed: a user's script is checked strictly against real types."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import meshwright

plans = meshwright.plan("llama-3.1-8b", "v5e:2x2", batch=16)
reveal_type(plans.best.cost.step_s)
reveal_type(plans.best.specs)
reveal_type(meshwright.load("plan.json"))
meshwright.plan("llama-3.1-8b", "v5e:2x2", bach=16)
"""


@pytest.mark.slow
def test_a_users_script_finds_real_types(tmp_path: Path) -> None:
    """Seconds are a float, specs a dict, and a keyword that is none is an error of the type checker's."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(script)],
        capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"MYPYPATH": str(meshwright_folder())},
    )  # fmt: skip
    said = run.stdout
    assert 'Revealed type is "float"' in said, said
    assert "TensorSpec" in said
    assert "Any" not in said
    assert 'Unexpected keyword argument "bach"' in said
    assert "Found 1 error" in said


def meshwright_folder() -> Path:
    """The folder that the packages are in."""
    import meshwright

    return Path(meshwright.__file__).parents[1]
