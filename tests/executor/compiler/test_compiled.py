"""What compiling says: memory, verdicts, and whether the collectives are those promised."""

import importlib.metadata
import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshwright
from executor.compiler.compiled import Compiled, CompileFailed, DoesNotFit, compile_on, compiler_options, too_big
from executor.compiler.expected import ExpectedCollective, expected_collectives, widths
from executor.compiler.hlo import big_copies, collectives
from executor.compiler.rewrites import compare_collectives
from executor.devices import build_mesh, prepare_environment, tpu_devices
from mesh.chips import load_chip
from mesh.slices import parse_slice
from planner.plan.plan import CommPlan, StepPlan
from strategies.layout import MeshAxes, MeshPiece

prepare_environment()
needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler: pip install 'meshwright[tpu]'"
)
CASES = Path(__file__).parents[2] / "cases"
SIZES = {"X": 2, "Y": 4}


def promise(kind: str, axes: tuple[str, ...], elements: float, runs: int = 1, width: float = 2) -> ExpectedCollective:
    """A priced collective."""
    return ExpectedCollective(kind, axes, elements, width, runs, f"{kind} of {elements}")


def test_promises_are_priced_bytes_as_elements_over_axes_that_cut() -> None:
    """Runs are the step's layers times its own; an axis of size 1 is none."""
    comm = CommPlan(kind="AllReduce", axes=("Y", "X", "Z"), bytes=128.0, times=3, bandwidth_s=0, hops_s=0, launches=0)
    zeros = dict.fromkeys(("flops", "hbm_bytes", "flops_s", "hbm_s", "ici_s", "latency_s", "seconds"), 0.0)
    step = StepPlan(
        component="mlp",
        part="body",
        layers=80,
        text="o[B] = ...",
        op="AllReduce",
        comms=(comm,),
        bound_by="ici",
        **zeros,
    )
    (found,) = expected_collectives([step], SIZES | {"Z": 1}, lambda step, comm: 2.0)
    assert found == ExpectedCollective("AllReduce", ("X", "Y"), 64.0, 2.0, 240, "mlp: o[B] = ...")


def test_a_real_plans_promises_are_whole_elements() -> None:
    """Widths by tensor: activations 2 bytes, the pairs of ArgMax 4."""
    (plan, *_) = meshwright.plan("llama-3.1-8b", "v5e:4x4", phase="decode", constants="data-sheet").plans
    sizes = dict(zip(plan.mesh.axis_names, plan.mesh.axis_sizes, strict=True))
    found = expected_collectives(plan.cost.steps, sizes, widths(plan))
    assert found
    assert all(p.elements == int(p.elements) for p in found)
    assert {p.width for p in found if "ArgMax" in p.text} == {4}
    assert {p.width for p in found if "ArgMax" not in p.text} == {2}


def test_the_out_of_memory_message_is_read_in_both_wordings() -> None:
    """GiB, as it prints them; other messages are none."""
    new = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (25.00G) exceeds "
    )
    old = "Ran out of memory in memory space hbm. Used 25.00G of 15.75G hbm. Exceeded hbm capacity by 9.25G."
    expected = DoesNotFit(need_bytes=25 * 2**30, have_bytes=15.75 * 2**30)
    assert too_big(new + "available HBM (15.75G).") == too_big(old) == expected
    assert too_big("INVALID_ARGUMENT: nothing to do with memory") is None


def square(name: str, pieces: dict[str, tuple[str, int, int]]) -> tuple[Any, Any]:
    """A slice and a mesh of one piece per axis on its described devices."""
    slice_ = parse_slice(name)
    axes = MeshAxes(
        axis_names=tuple(pieces),
        axis_sizes=tuple(size for _, _, size in pieces.values()),
        pieces=tuple((MeshPiece(axis=a, stride=s, size=m),) for a, s, m in pieces.values()),
    )
    return slice_, build_mesh(axes, slice_, tpu_devices(slice_))


def mlp(mesh: Any, layers: int, batch: int, hidden: int) -> tuple[Any, list[Any]]:
    """A gathered, matmul, scattered program over X and Y, scanned over layers, and its arguments."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    lax: Any = jax.lax

    def local(x: Any, w1: Any, w2: Any) -> Any:
        def layer(x: Any, ws: Any) -> Any:
            h = lax.psum_scatter(
                lax.all_gather(x, "Y", axis=1, tiled=True) @ ws[0], "X", scatter_dimension=1, tiled=True
            )
            h = lax.all_gather(jax.nn.gelu(h), "X", axis=1, tiled=True)
            return x + lax.psum_scatter(h @ ws[1], "Y", scatter_dimension=1, tiled=True), None

        return lax.scan(layer, x, (w1, w2))[0]

    specs = (P(None, ("X", "Y")), P(None, "X", "Y"), P(None, "Y", "X"))
    shapes = ((batch, 4096), (layers, 4096, hidden), (layers, hidden, 4096))
    args = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, specs, strict=True)
    ]
    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=specs[0], check_vma=False), args


def promised_mlp(layers: int, batch: int, hidden: int, x: int, y: int) -> list[ExpectedCollective]:
    """What `mlp` should move."""
    return [
        promise("AllGather", ("Y",), batch * 4096 // x, layers),
        promise("ReduceScatter", ("X",), batch * hidden // y, layers),
        promise("AllGather", ("X",), batch * hidden // y, layers),
        promise("ReduceScatter", ("Y",), batch * 4096 // x, layers),
    ]


@needs_compiler
@pytest.mark.slow
def test_v5e_scatters_shards_of_a_multiple_of_256_and_reduces_others() -> None:
    """Hidden size 16384 gives shards of 1024 columns: as promised. 14336 gives 896: an AllReduce, 3/4 more bytes."""
    slice_, mesh = square("v5e:4x4", {"X": ("X", 1, 4), "Y": ("Y", 1, 4)})
    kinds = {}
    for hidden in (16384, 14336):
        compiled = compile_on(slice_, *mlp(mesh, 8, 64, hidden))
        assert isinstance(compiled, Compiled)
        assert compiled.argument_bytes == 8 * 2 * 4096 * hidden // 16 * 2 + 64 * 256 * 2
        outcome = compare_collectives(promised_mlp(8, 64, hidden, 4, 4), collectives(compiled.text), mesh.shape)
        assert outcome.holds
        kinds[hidden] = {(r.kind, r.extra_bytes) for r in outcome.rewrites}
    assert kinds == {16384: set(), 14336: {("AsAllReduce", 8 * 64 * 3584 * 2 * 3 / 4)}}


@needs_compiler
@pytest.mark.slow
def test_tpu7x_weights_are_not_copied_with_the_options_we_give() -> None:
    """Without them the stacked weights are all copied into another tiling."""
    import jax

    slice_, mesh = square("tpu7x:2x2x1", {"X": ("X", 1, 2), "Y": ("Y", 1, 2), "Z": ("core", 1, 2)})
    fn, args = mlp(mesh, 8, 64, 8192)
    weights = 8 * 4096 * 8192 // 4 * 2
    ours = compile_on(slice_, fn, args)
    assert isinstance(ours, Compiled)
    assert big_copies(ours.text, weights / 2) == []
    assert ours.temp_bytes < weights / 2
    plain = jax.jit(fn).lower(*args).compile()
    assert len(big_copies(plain.as_text() or "", weights / 2)) == 2


def test_options_are_for_tpu_programs_of_tpu7x_only() -> None:
    """Other compilers reject them."""
    assert compiler_options(parse_slice("tpu7x:2x2x1"))
    assert compiler_options(parse_slice("v5e:4x4")) == {}


def test_a_limit_below_what_was_planned_with_is_told() -> None:
    """Where it is more than the compiler's rounding."""
    refused = DoesNotFit(102.811e9, 102.789e9)
    assert refused.describe(102.794e9) == "102.8110 GB needed, 102.7890 GB usable"
    assert refused.describe(102.803e9).startswith(
        "102.8110 GB needed, 102.7890 GB usable (14 MB less than planned with"
    )


LIMITS: dict[str, dict[str, float]] = tomllib.loads((CASES / "usable_hbm_by_libtpu.toml").read_text("utf-8"))


def limit_of(chip: str, libtpu: str) -> float:
    """The largest program of a chip in bytes, by the newest entry that is no newer than this libtpu."""
    known = [v for v in LIMITS if _numbers(v) <= _numbers(libtpu) and chip in LIMITS[v]]
    return LIMITS[max(known, key=_numbers)][chip]


def _numbers(version: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", version)]


def test_plans_count_on_the_limits_of_one_compiler() -> None:
    """Of libtpu 0.0.42; later ones let a program use less by at most 17 MB, which `verify` tells."""
    planned = {chip: load_chip(chip).usable_hbm_bytes_per_device for chip in LIMITS["0.0.42"]}
    assert planned == LIMITS["0.0.42"]
    assert all(0 < planned[c] - limit < 17e6 for c, limit in LIMITS["0.0.50"].items())
    assert limit_of("v5p", "0.0.42.1") == limit_of("v5p", "0.0.49") == planned["v5p"]
    assert limit_of("v5p", "0.0.50.1") == limit_of("v5p", "0.1.0") < planned["v5p"]
    assert limit_of("v5e", "0.0.50.1") == planned["v5e"]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    "name",
    ["v3:2x2", "v4:2x2x1", "v5e:1x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:1x1x1"],
)
def test_the_compilers_limit_is_the_one_known_of_its_version(name: str) -> None:
    """A program of 0.99998 of it fits; one of 1.00002 does not, nor one of 1.5, whose message gives the limit."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    slice_ = parse_slice(name)
    whole = NamedSharding(Mesh(np.array(tpu_devices(slice_)), ("A",)), PartitionSpec())
    usable = limit_of(slice_.chip.name, importlib.metadata.version("libtpu"))

    def doubled(share: float, hbm_bytes: float | None = None) -> Compiled | DoesNotFit:
        rows = int(share * usable / 2 / (8 * 128 * 2))  # half is the argument, half the result
        args = [jax.ShapeDtypeStruct((rows, 8, 128), jnp.bfloat16, sharding=whole)]
        return compile_on(slice_, lambda x: x * 2, args, hbm_bytes=hbm_bytes)

    fits, not_ = doubled(0.99998), doubled(1.5)
    assert isinstance(fits, Compiled)
    assert fits.total_bytes == pytest.approx(usable, rel=1e-4)
    assert isinstance(doubled(1.00002), DoesNotFit)
    assert isinstance(not_, DoesNotFit)
    assert not_.have_bytes == pytest.approx(usable, abs=0.005 * 2**30)
    assert not_.need_bytes == pytest.approx(1.5 * usable, rel=1e-3)
    assert isinstance(doubled(0.48, usable / 2), Compiled)
    less = doubled(0.52, usable / 2)
    assert isinstance(less, DoesNotFit)
    assert less.have_bytes == pytest.approx(usable / 2, rel=0.04)


@needs_compiler
def test_donated_arguments_are_counted_once() -> None:
    """An output in its argument's place is aliased."""
    import jax
    import jax.numpy as jnp

    slice_, mesh = square("v5e:2x2", {"X": ("X", 1, 2), "Y": ("Y", 1, 2)})
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("X"))
    compiled = compile_on(
        slice_, lambda x: x + 1, [jax.ShapeDtypeStruct((4096, 4096), jnp.float32, sharding=sharding)], [0]
    )
    assert isinstance(compiled, Compiled)
    assert compiled.alias_bytes == compiled.argument_bytes == 2**25
    assert compiled.total_bytes < 2**26


@needs_compiler
def test_another_failure_is_one_line_with_the_slice() -> None:
    """A compiler option that does not exist, say."""
    import jax
    import jax.numpy as jnp

    slice_, mesh = square("v5e:2x2", {"X": ("X", 1, 2), "Y": ("Y", 1, 2)})
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    fn = jax.jit(lambda x: x + 1, compiler_options={"xla_no_such_option": "1"})
    with pytest.raises(CompileFailed, match="the compiler for v5e:2x2 failed: INVALID_ARGUMENT"):
        compile_on(slice_, fn, [jax.ShapeDtypeStruct((8,), jnp.float32, sharding=sharding)])
