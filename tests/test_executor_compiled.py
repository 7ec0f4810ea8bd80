"""What compiling says: memory, verdicts, and whether the collectives are those promised."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshwright
from executor.compiled import Compiled, CompileFailed, DoesNotFit, compile_on, compiler_options, too_big
from executor.devices import build_mesh, prepare_environment, tpu_devices
from executor.hlo import Collective, Part, big_copies, collectives
from executor.promises import Promise, promises, widths
from executor.rewrites import Comparison, compare_collectives
from mesh.slices import parse_slice
from planner.plan import CommPlan, MeshAxes, MeshPiece, StepPlan

prepare_environment()
CASES = Path(__file__).parent / "cases" / "hlo"
needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler: pip install 'meshwright[tpu]'"
)
SIZES = {"X": 2, "Y": 4}
GROUPS = {
    ("X",): tuple((n, n + 4) for n in range(4)),
    ("Y",): (tuple(range(4)), tuple(range(4, 8))),
    ("X", "Y"): (tuple(range(8)),),
}


def promise(kind: str, axes: tuple[str, ...], elements: float, runs: int = 1, width: float = 2) -> Promise:
    """A priced collective."""
    return Promise(kind, axes, elements, width, runs, f"{kind} of {elements}")


def ran(
    kind: str, axes: tuple[str, ...], *elements: int, runs: int | None = 1, dtype: str = "bf16", padding: int = 0
) -> Collective:
    """A collective of a compiled program, with an operand for each number of elements."""
    bits = {"bf16": 16, "f32": 32}[dtype]
    return Collective(
        kind=kind,
        name=f"{kind}.{sum(elements)}",
        op_name="jit(f)/op",
        parts=tuple(Part(n, dtype, bits) for n in elements),
        groups=GROUPS[axes] if kind != "CollectivePermute" else (),
        pairs=tuple((g[0], g[1]) for g in GROUPS[axes]) if kind == "CollectivePermute" else (),
        runs=runs,
        padding=padding,
    )


def compare(promised: Sequence[Promise], found: Sequence[Collective]) -> Comparison:
    """On a mesh of 2 x 4."""
    return compare_collectives(promised, found, SIZES)


def test_what_was_promised_holds_without_a_word() -> None:
    """Runs may be split over several places in the program."""
    found = [ran("AllReduce", ("Y",), 64, runs=1), ran("AllReduce", ("Y",), 64, runs=79)]
    assert compare([promise("AllReduce", ("Y",), 64, runs=80)], found) == Comparison((), ())


@pytest.mark.parametrize(
    ("kind", "promised", "found", "extra_bytes"),
    [
        ("AsAllReduce", promise("ReduceScatter", ("Y",), 64), [ran("AllReduce", ("Y",), 64)], 96),
        ("AsAllReduce", promise("AllGather", ("Y",), 64), [ran("AllReduce", ("Y",), 64)], 96),
        ("AsAllReduce", promise("AllToAll", ("Y",), 64), [ran("AllReduce", ("Y",), 64)], 192 - 24),
        ("AsAllGather", promise("AllToAll", ("Y",), 64), [ran("AllGather", ("Y",), 64)], 96 - 24),
        ("AsTwo", promise("AllReduce", ("Y",), 64), [ran(k, ("Y",), 64) for k in ("ReduceScatter", "AllGather")], 0),
        ("AsPermutes", promise("AllToAll", ("Y",), 64), [ran("CollectivePermute", ("Y",), 4, runs=3)], 0),
        ("ByAxes", promise("AllReduce", ("X", "Y"), 64), [ran("AllReduce", (a,), 64) for a in "XY"], 96),
        (
            "ByAxes",
            promise("AllGather", ("X", "Y"), 64),
            [ran("AllGather", ("X",), 64), ran("AllGather", ("Y",), 32)],
            0,
        ),
        ("Widened", promise("AllReduce", ("Y",), 64), [ran("AllReduce", ("Y",), 64, dtype="f32")], 192),
        ("Narrowed", promise("AllReduce", ("Y",), 64, width=4), [ran("AllReduce", ("Y",), 64)], -192),
        ("Regrouped", promise("AllGather", ("Y",), 64), [ran("AllGather", ("Y",), 16, runs=4)], 0),
    ],
)
def test_a_known_rewrite_is_a_value_with_its_extra_bytes(
    kind: str, promised: Promise, found: list[Collective], extra_bytes: float
) -> None:
    """Extra bytes: those that each device sends beyond the priced ones."""
    outcome = compare([promised], found)
    assert outcome.holds
    (rewrite,) = outcome.rewrites
    assert (rewrite.kind, rewrite.promised, rewrite.found) == (kind, (promised,), tuple(found))
    assert rewrite.extra_bytes == pytest.approx(extra_bytes)


def test_a_merged_collective_is_matched_operand_by_operand() -> None:
    """Two promises in one AllReduce of two operands; a promise of the sum is no rewrite."""
    found = ran("AllReduce", ("Y",), 64, 1024, runs=5)
    wanted = [promise("AllReduce", ("Y",), n, runs=5) for n in (64, 1024)]
    (rewrite,) = compare(wanted, [found]).rewrites
    assert (rewrite.kind, rewrite.promised, rewrite.extra_bytes) == ("Merged", tuple(wanted), 0)
    assert compare([promise("AllReduce", ("Y",), 1088, runs=5)], [found]) == Comparison((), ())


def test_a_padded_scatter_takes_its_border_permute_with_it() -> None:
    """The permute was not promised, but belongs to the padding; without padding it is extra."""
    wanted = promise("ReduceScatter", ("Y",), 6400)
    permute = ran("CollectivePermute", ("Y",), 80)
    (rewrite,) = compare([wanted], [ran("ReduceScatter", ("Y",), 6400, padding=160), permute]).rewrites
    assert (rewrite.kind, rewrite.extra_bytes) == ("Padded", 160 * 2 * 3 / 4 + 80 * 2)
    assert not compare([wanted], [ran("ReduceScatter", ("Y",), 6400), permute]).holds


@pytest.mark.parametrize(
    ("kind", "promised", "found"),
    [
        ("extra", [], [ran("AllGather", ("Y",), 64)]),
        ("missing", [promise("AllGather", ("Y",), 64)], []),
        ("changed", [promise("AllGather", ("Y",), 64)], [ran("AllGather", ("Y",), 128)]),
        ("changed", [promise("AllGather", ("Y",), 32)], [ran("AllGather", ("Y",), 64, dtype="f32")]),
        ("extra", [], [ran("AllGather", ("Y",), 64, runs=None)]),
    ],
)
def test_anything_else_is_a_difference(kind: str, promised: list[Promise], found: list[Collective]) -> None:
    """With the promised steps and the found operations in it."""
    (difference,) = compare(promised, found).differences
    assert (difference.kind, difference.promised, difference.found) == (kind, tuple(promised), tuple(found))


def test_a_run_that_is_missing_is_counted() -> None:
    """79 of 80 layers: one run is missing, and what it would have sent."""
    wanted = promise("AllGather", ("Y",), 64, runs=80)
    (difference,) = compare([wanted], [ran("AllGather", ("Y",), 64, runs=79)]).differences
    assert (difference.kind, difference.promised, difference.promised_runs) == ("missing", (wanted,), 1)
    assert difference.extra_bytes == -96


def test_another_axis_is_one_missing_and_one_extra() -> None:
    """A swapped device order shows as groups that are no axes, or others."""
    foreign = ran("AllGather", ("Y",), 64)
    outcome = compare([promise("AllGather", ("X",), 64)], [foreign])
    assert sorted(d.kind for d in outcome.differences) == ["extra", "missing"]


def test_promises_are_priced_bytes_as_elements_over_axes_that_cut() -> None:
    """Runs are the step's layers times its own; an axis of size 1 is none."""
    comm = CommPlan(kind="AllReduce", axes=("Y", "X", "Z"), bytes=128.0, times=3, bandwidth_s=0, hops_s=0)
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
    (found,) = promises([step], SIZES | {"Z": 1}, lambda step, comm: 2.0)
    assert found == Promise("AllReduce", ("X", "Y"), 64.0, 2.0, 240, "mlp: o[B] = ...")


def test_a_real_plans_promises_are_whole_elements() -> None:
    """Widths by tensor: activations 2 bytes, the pairs of ArgMax 4."""
    (plan, *_) = meshwright.plan("llama-3.1-8b", "v5e:4x4", phase="decode").plans
    sizes = dict(zip(plan.mesh.axis_names, plan.mesh.axis_sizes, strict=True))
    found = promises(plan.cost.steps, sizes, widths(plan))
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


def promised_mlp(layers: int, batch: int, hidden: int, x: int, y: int) -> list[Promise]:
    """What `mlp` should move."""
    return [
        promise("AllGather", ("Y",), batch * 4096 // x, layers),
        promise("ReduceScatter", ("X",), batch * hidden // y, layers),
        promise("AllGather", ("X",), batch * hidden // y, layers),
        promise("ReduceScatter", ("Y",), batch * 4096 // x, layers),
    ]


@needs_compiler
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


@needs_compiler
@pytest.mark.parametrize("name", ["v3:2x2", "v4:2x2x1", "v5e:1x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:1x1x1"])
def test_the_compilers_limit_is_our_usable_memory(name: str) -> None:
    """A program of 0.998 of it fits; one of 1.5 of it does not, and the limit in the message is ours."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    slice_ = parse_slice(name)
    whole = NamedSharding(Mesh(np.array(tpu_devices(slice_)), ("A",)), PartitionSpec())
    usable = slice_.chip.usable_hbm_bytes_per_device

    def doubled(share: float) -> Compiled | DoesNotFit:
        rows = int(share * usable / 2 / (8 * 128 * 2))  # half is the argument, half the result
        return compile_on(slice_, lambda x: x * 2, [jax.ShapeDtypeStruct((rows, 8, 128), jnp.bfloat16, sharding=whole)])

    fits, not_ = doubled(0.998), doubled(1.5)
    assert isinstance(fits, Compiled)
    assert fits.total_bytes == pytest.approx(0.998 * usable, rel=1e-3)
    assert isinstance(not_, DoesNotFit)
    assert not_.have_bytes == pytest.approx(usable, abs=0.005 * 2**30)
    assert not_.need_bytes == pytest.approx(1.5 * usable, rel=1e-3)


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


def test_the_cpus_program_holds_against_the_same_promises() -> None:
    """A golden program: all bf16 widened, two AllReduces merged; nothing missing or extra."""
    wanted = [
        promise("AllGather", ("y",), 16 * 256, 5),
        promise("ReduceScatter", ("x",), 16 * 64, 5),
        promise("AllGather", ("x",), 16 * 64, 5),
        promise("AllReduce", ("x", "y"), 16 * 64, 5),
        promise("AllReduce", ("x", "y"), 64, 5),
        *[promise("AllToAll", ("y",), 16 * 64 * 4, 5)] * 2,
        promise("CollectivePermute", ("y",), 16 * 64, 5),
    ]
    found = collectives((CASES / "cpu_promoted.hlo").read_text("utf-8"))
    outcome = compare_collectives(wanted, found, {"x": 2, "y": 4})
    assert outcome.holds
    assert {r.kind for r in outcome.rewrites} == {"Widened", "Merged"}
    for n in range(len(wanted)):
        assert not compare_collectives(wanted[:n] + wanted[n + 1 :], found, {"x": 2, "y": 4}).holds
