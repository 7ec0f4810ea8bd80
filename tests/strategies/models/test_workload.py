"""Sizes of a layer's dims in a workload: what is held, and how many keys a query sees."""

import pytest

from strategies.models.models import Attention, LayerGroup, Mlp, Model
from strategies.models.workload import Dtypes, Workload, layer_dims


def small(window: int | None) -> tuple[Model, LayerGroup]:
    """A model of one layer."""
    group = LayerGroup(count=1, attention=Attention(N=8, K=2, H=16, window=window), mlp=Mlp(F=64, gated=True))
    return Model(name="small", D=32, V=100, tied=False, groups=(group,)), group


@pytest.mark.parametrize("window", [None, 1, 3, 7, 50, 64])
def test_the_mean_of_keys_is_the_sum_over_a_causal_mask(window: int | None) -> None:
    """Token i of a prompt of 50 sees min(i, window) keys; the mean is exact."""
    model, group = small(window)
    sizes = layer_dims(model, group, Workload(phase="prefill", batches=(1,), context=50, dtypes=Dtypes()))
    assert sizes["attended"] == pytest.approx(sum(min(i, window or 50) for i in range(1, 51)) / 50)
    assert (sizes["kept"], sizes["S"]) == (min(50, window or 50) / 50, 50)


def test_decode_attends_to_what_is_held() -> None:
    """A filled cache of 50, or the window."""
    for window, held in ((None, 50), (7, 7), (64, 50)):
        model, group = small(window)
        sizes = layer_dims(model, group, Workload(phase="decode", batches=(1,), context=50, dtypes=Dtypes()))
        assert (sizes["attended"], sizes["kept"], sizes["S"]) == (held, 1, held)
