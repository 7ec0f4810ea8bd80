"""What the norms' vectors hold: the search's tables and the pricing of one layout count them alike."""

from __future__ import annotations

from collections.abc import Sequence

from strategies.components import Component, entry_parts, exit_parts
from strategies.models.workload import Workload
from strategies.readers.cost import Speeds


def norm_bytes(components: Sequence[Component], work: Workload, fast: Speeds) -> float:
    """The norms' vectors between components and residual: counted whole on every device, which some layouts cut."""
    vectors = 0
    for component in components:
        parts = (*entry_parts(component, work.phase), *exit_parts(component, work.phase))
        vectors += component.times * sum(len(part.program.weights) for part in parts)
    return vectors * components[0].dims["D"] * fast.widths["weight"]
