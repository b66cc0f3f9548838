"""Backends of emulated matrix units: which products of torch they compute, what their rows say, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tasks import catalogs
from tasks.arrays.tree import TensorSpec, encode_argument_tree
from tasks.backends import BackendSpec
from tasks.judge.error_metrics import compare_outputs
from tasks.matrix_units import ARCHITECTURES
from tasks.model import Form, Group, Unsupported, get_numpy_dtype
from tests.conftest import here

torch = pytest.importorskip("torch")


def compute(name: str, call: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """What a backend gives of a call on contiguous tensors."""
    args = encode_argument_tree(tuple(TensorSpec(k) for k in range(len(arrays))))
    form = Form("torch", "user:call", arrays[0].dtype.name, list(arrays), call, args, encode_argument_tree({}))
    backend = BackendSpec.parse(name).create()
    backend.start()
    return np.asarray(backend.build(form).run()[0])


def integers(*shape: int, dtype: str = "float16", seed: int = 0) -> np.ndarray:
    """Small numbers, whose sums every unit has exactly."""
    return np.random.default_rng((seed, *shape)).integers(-3, 4, shape).astype(get_numpy_dtype(dtype))


#: Calls made of products, on tensors whose results are exact in any order.
CALLS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "matmul": (lambda a, b: a @ b, (integers(2, 5, 7), integers(2, 7, 3))),
    "vector": (lambda a, b: a @ b, (integers(5, 7), integers(7))),
    "dot": (lambda a, b: torch.dot(a, b), (integers(7), integers(7, seed=1))),
    "linear": (lambda x, w, b: torch.nn.functional.linear(x, w, b), (integers(2, 3, 5), integers(4, 5), integers(4))),
    "einsum": (lambda a, b: torch.einsum("bij,bjk->bik", a, b), (integers(2, 5, 7), integers(2, 7, 3))),
    "baddbmm": (
        lambda c, a, b: torch.baddbmm(c, a, b, beta=2, alpha=3),
        (integers(2, 5, 3), integers(2, 5, 7), integers(2, 7, 3)),
    ),
    "conv1d": (
        lambda x, w, b: torch.nn.functional.conv1d(x, w, b, stride=2, padding=1, dilation=2),
        (integers(2, 3, 11), integers(4, 3, 3), integers(4)),
    ),
    "conv2d": (
        lambda x, w: torch.nn.functional.conv2d(x, w, stride=(2, 1), padding=(1, 2)),
        (integers(2, 3, 8, 7), integers(4, 3, 3, 2)),
    ),
    "conv2d of groups": (
        lambda x, w: torch.nn.functional.conv2d(x, w, groups=2, padding=1),
        (integers(1, 4, 5, 6), integers(6, 2, 3, 3)),
    ),
    "conv3d": (lambda x, w: torch.nn.functional.conv3d(x, w), (integers(1, 2, 4, 5, 6), integers(3, 2, 2, 3, 2))),
    "transposed": (
        lambda x, w: torch.nn.functional.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1, groups=2),
        (integers(2, 4, 5, 4), integers(4, 3, 3, 3)),
    ),
    "transposed, dilated": (
        lambda x, w: torch.nn.functional.conv_transpose1d(x, w, stride=3, dilation=2),
        (integers(2, 4, 5), integers(4, 3, 3)),
    ),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("architecture", ["volta", "cdna1"])
def test_products_of_small_integers_are_exact(name: str, architecture: str) -> None:
    call, arrays = CALLS[name]
    exact = call(*(torch.from_numpy(x.astype(np.float64)) for x in arrays)).numpy()
    found = compute(f"emulated-{architecture}", call, *arrays)
    assert found.dtype == np.float16 and (found == exact).all()


def test_the_sum_is_the_unit_s_and_what_follows_is_a_kernel_s_epilogue() -> None:
    """Beside 2^16 a product of 2^-9 is Hopper's last one; a bias is added in float32 and the result is rounded once."""
    large, small = 2.0**8, np.float32(2.0**-4)
    a = np.array([[large, small, -large]], np.float16)
    b = np.array([[large], [2.0**-5], [large]], np.float16)
    mm, addmm = (lambda a, b: a @ b), (lambda c, a, b: torch.addmm(c, a, b, beta=0.5))
    assert compute("emulated-hopper", mm, a, b) == 2.0**-9 and compute("emulated-ampere", mm, a, b) == 0
    one = np.ones((1, 1), np.float16)
    assert compute("emulated-hopper", addmm, one, a, b) == np.float16(0.5 + 2.0**-9)


def test_attention_is_computed_by_its_products() -> None:
    q = np.random.default_rng(0).standard_normal((1, 2, 8, 16)).astype(np.float16)
    call = torch.nn.functional.scaled_dot_product_attention
    exact = call(*[torch.from_numpy(q.astype(np.float64))] * 3).numpy()
    assert np.abs(compute("emulated-hopper", call, q, q, q) - exact).max() < 2e-3


def test_what_no_unit_computes_is_unsupported_in_one_line() -> None:
    halves, wide = integers(4, 4), integers(4, 4, dtype="float64")
    for name, call, arrays, words in (
        ("emulated-volta", lambda a: torch.exp(a), (halves,), "has no product that a matrix unit computes"),
        ("emulated-hopper", lambda a: a @ a, (wide,), "the matrix unit of hopper takes float16, .*; not float64$"),
        (
            "emulated-volta",
            lambda a: a @ a,
            (integers(4, 4, dtype="bfloat16"),),
            "of volta takes float16; not bfloat16$",
        ),
        (
            "emulated-hopper",
            lambda a: torch.cdist(a, a),
            (integers(40, 4, dtype="float32"),),
            "_euclidean_dist is made of more",
        ),
    ):
        with pytest.raises(Unsupported, match=words) as said:
            compute(name, call, *arrays)
        assert "\n" not in str(said.value)


def test_an_architecture_that_is_none_is_one_line() -> None:
    with pytest.raises(ValueError, match="its device is one of volta, turing, .*, not 'pascal'"):
        BackendSpec.parse("emulated-pascal").create()
    with pytest.raises(ValueError, match="unknown option 'tf32'; it takes none"):
        BackendSpec.parse("emulated-hopper", options={"tf32": True}).create()


def test_each_architecture_is_a_backend_of_its_vendor_and_says_that_it_is_emulated() -> None:
    for architecture, known in ARCHITECTURES.items():
        backend = BackendSpec.parse(f"emulated-{architecture}").create()
        info = backend.start()
        assert backend.emulated and (backend.vendor, backend.resource) == (known.vendor, "CPU")
        assert info.device == f"emulated {known.vendor} {architecture} matrix unit"
        assert info.compute_precision == (
            "tfloat32" * (known.vendor == "NVIDIA" and architecture not in ("volta", "turing"))
        )
        assert info.accumulators == ((f"{architecture}-float8",) if architecture in ("ada", "hopper") else ())


def test_rows_are_judged_as_any_and_told_from_a_card_s(tmp_path: Path) -> None:
    config = tmp_path / "one.yaml"
    config.write_text(
        "catalogs: [{name: gemm, ops: [scaled_mm, int_mm, mm], samples: 2}]\n"
        "dtypes: [float8_e4m3fn, int8, float16, float64]\n"
        "backends: [emulated-hopper, emulated-blackwell]\n"
    )
    done = here(config, "--on", "inline", "--results", tmp_path / "lake")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = pd.read_parquet(tmp_path / "lake")
    ran = rows[rows["status"] != "unsupported"]
    assert set(ran["execution"]) == {"emulated"} and set(ran["device"]) == {
        f"emulated NVIDIA {x} matrix unit" for x in ("hopper", "blackwell")
    }
    float8 = rows[(rows["op"] == "gemm:scaled_mm") & (rows["variant"] == "float32")]
    assert dict(float8.groupby("backend")["status"].first()) == {
        "emulated-hopper": "imprecise",
        "emulated-blackwell": "pass",
    }
    assert set(float8[float8["backend"] == "emulated-hopper"]["cause"]) == {"accumulates in 13 bits"}
    assert set(rows[rows["dtype"] == "float64"]["status"]) == {"unsupported"}
    assert set(rows[rows["dtype"].isin(["int8", "float16"])]["status"]) == {"pass"}


@pytest.mark.parametrize(
    ("label", "dtype", "backend", "status"),
    [
        ("block_scaled_mm.mx", "float8_e4m3fn", "emulated-blackwell", "pass"),
        ("block_scaled_mm.mx", "float8_e5m2", "emulated-blackwell", "pass"),
        ("block_scaled_mm.mx", "float4_e2m1fn", "emulated-blackwell", "pass"),
        ("block_scaled_mm.nv", "float4_e2m1fn", "emulated-blackwell", "pass"),
        ("block_scaled_mm.mx", "float6_e3m2fn", "emulated-blackwell", "torch .* has no tensors of float6_e3m2fn"),
        ("block_scaled_mm.mx", "float8_e4m3fn", "emulated-hopper", "not float8_e4m3fn scaled by float8_e8m0fnu"),
        ("grouped_mm.rows", "bfloat16", "emulated-cdna3", "pass"),
        ("grouped_mm.depth", "float16", "emulated-ampere", "pass"),
        ("grouped_mm.rows", "bfloat16", "emulated-volta", "takes float16; not bfloat16"),
    ],
)
def test_block_scaled_and_grouped_products(label: str, dtype: str, backend: str, status: str) -> None:
    op, _, variant = label.partition(".")
    group, catalog = Group(f"gemm:{op}", variant, dtype, 2), catalogs.get_catalog("gemm")
    made = BackendSpec.parse(backend).create()
    made.start()
    for sample in catalog.samples(group, 4):
        args, kwargs = sample.encoded()
        form = Form("torch", group.op, dtype, sample.arrays, catalog.call(group), args, kwargs)
        if status != "pass":
            with pytest.raises(Unsupported, match=status):
                made.build(form).run()
            continue
        found = compare_outputs([np.asarray(x) for x in made.build(form).run()], sample.expected, sample.op_class)
        assert found.error_units is not None and found.error_units < 8
