"""Whether `import` finds our own packages, or something of the same name that stands before them on the path."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

_PACKAGES = ("mesh", "strategies", "planner", "executor")


def shadow() -> str | None:
    """One line if `import` finds something else under the name of one of our packages."""
    folder = Path(__file__).parents[1]
    for name in _PACKAGES:
        found = _found(name)
        if os.path.realpath(found) != os.path.realpath(folder / name / "__init__.py"):
            return (
                f"'{found}' shadows meshwright's own package '{name}' in '{folder}'; rename it, take it off "
                "PYTHONPATH, or run from another folder"
            )
    return None


def _found(name: str) -> str:
    """What `import name` finds: a file, or the folder where that has no `__init__.py`."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a module without a spec was loaded under this name
        return getattr(sys.modules[name], "__file__", None) or f"a module '{name}' without a file"
    if spec is None:
        return "nothing"
    return spec.origin or next(iter(spec.submodule_search_locations or ()), "nothing")
