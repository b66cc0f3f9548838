"""The critical catalog: its references agree with torch in float64, its samples are reproducible and well judged."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tasks.arrays.tree import TensorSpec
from tasks.catalogs.base import Sample
from tasks.catalogs.critical import encoder
from tasks.catalogs.critical import reference as ref
from tasks.catalogs.critical.catalog import DTYPES, Critical
from tasks.catalogs.critical.ops import OPS, Call, CriticalOp, make_critical_call
from tasks.model import EPS, SMALLEST_NORMAL, Group, Leaf

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

CATALOG = Critical()
NAMES = sorted(OPS)
SMALL = [name for name in NAMES if name != "embedding"]

LISTED = """
matmul bmm addmm linear conv2d conv2d_depthwise conv2d_grouped conv1d conv_transpose2d relu gelu gelu_tanh silu sigmoid
tanh softplus hardswish softmax log_softmax layer_norm rms_norm group_norm batch_norm instance_norm sum mean max min
argmax cumsum var topk sort add mul div pow exp log sqrt rsqrt where clamp embedding index_select gather scatter_add
cat transpose_contiguous max_pool2d avg_pool2d adaptive_avg_pool2d interpolate_bilinear interpolate_nearest
scaled_dot_product_attention scaled_dot_product_attention_causal scaled_dot_product_attention_gqa rotary_embedding
swiglu cross_entropy mse_loss dropout bert_encoder
"""

#: torch computes Φ(x) = (1 + erf)/2 and (1 + tanh)/2 as written: what cancels for negative x is its own error.
CANCELS = {"gelu", "gelu_tanh"}


def group(name: str, dtype: str, samples: int = 1, seed: int = 0) -> Group:
    return Group(f"critical:{name}", "", dtype, samples, seed)


def sample(name: str, dtype: str, draws: int = 0, seed: int = 0) -> Sample:
    (made,) = CATALOG.samples(group(name, dtype, seed=seed), draws)
    assert made.failure is None, made.failure
    return made


def tensor(array: np.ndarray) -> Any:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def run_torch(name: str, dtype: str, made: Sample) -> Any:
    def place(value: Any) -> Any:
        return tensor(made.arrays[value.id]) if isinstance(value, TensorSpec) else value

    args, kwargs = [place(x) for x in made.args], {k: place(x) for k, x in made.kwargs.items()}
    return CATALOG.call(group(name, dtype))(*args, **kwargs)


def expected(made: Sample) -> tuple[Leaf, np.ndarray]:
    (leaf,) = made.expected
    assert leaf.reference is not None
    return leaf, leaf.reference


def agrees_in_float64(name: str) -> bool:
    """The torch form and the reference agree to 1e-9, relative to the element or to the output's root mean square."""
    made = sample(name, "float64")
    result = run_torch(name, "float64", made).numpy()
    leaf, reference = expected(made)
    assert result.dtype.name == leaf.dtype and result.shape == leaf.shape == reference.shape
    scale = math.sqrt(np.mean(np.square(reference.astype(np.float64))))
    return bool(np.allclose(result, reference, rtol=1e-9, atol=1e-12 * scale))


def test_the_listed_ops_are_there_in_every_dtype() -> None:
    entries = CATALOG.entries()
    assert [e.op for e in entries] == sorted(f"critical:{name}" for name in LISTED.split())
    assert len(entries) >= 60
    assert {e.dtypes for e in entries} == {("float32", "float16", "bfloat16", "float64")}
    assert {e.variant for e in entries} == {""}


@pytest.mark.parametrize("name", NAMES)
def test_reference_agrees_with_torch_in_float64(name: str) -> None:
    assert agrees_in_float64(name)


def biased_variance(x: np.ndarray, dim: int, correction: int) -> np.ndarray:
    return np.var(x, axis=dim)


def one_key_too_many(q: np.ndarray, k: np.ndarray, v: np.ndarray, is_causal: bool) -> np.ndarray:
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    scores = np.where(np.tri(q.shape[2], k.shape[2], 1, dtype=bool), scores, -np.inf)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True) @ v


def interleaved_heads(q: np.ndarray, k: np.ndarray, v: np.ndarray, enable_gqa: bool) -> np.ndarray:
    times = q.shape[1] // k.shape[1]
    return ref.attention(q, np.tile(k, (1, times, 1, 1)), np.tile(v, (1, times, 1, 1)))


def padding_not_counted(x: np.ndarray, kernel_size: int, stride: int, padding: int) -> np.ndarray:
    mean = ref.avg_pool2d
    return mean(x, kernel_size, stride, padding) / mean(np.ones_like(x), kernel_size, stride, padding)


FAULTS: dict[str, Callable[..., np.ndarray]] = {
    "var": biased_variance,
    "scaled_dot_product_attention_causal": one_key_too_many,
    "scaled_dot_product_attention_gqa": interleaved_heads,
    "avg_pool2d": padding_not_counted,
    "gelu": lambda x: ref.gelu_tanh(x, "tanh"),
    "bert_encoder": lambda x, mask, *weights, heads: encoder.encode_reference(x, 0 * mask, *weights, heads=heads),
    "rms_norm": lambda x, normalized_shape, weight, eps: (
        x / (np.sqrt(np.mean(x * x, -1, keepdims=True)) + eps) * weight
    ),
    "cross_entropy": lambda x, target, ignore_index: ref.cross_entropy(x, np.maximum(target, 0), -100),
    "interpolate_nearest": lambda x, size, mode: np.roll(np.repeat(np.repeat(x, 2, 2), 2, 3), 1, 3),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_reference_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert agrees_in_float64(name)
    monkeypatch.setitem(OPS, name, dataclasses.replace(OPS[name], reference=FAULTS[name]))
    assert not agrees_in_float64(name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", SMALL)
def test_torch_returns_the_leaf_within_the_noise_floor(name: str, dtype: str) -> None:
    made = sample(name, dtype, draws=4)
    leaf, reference = expected(made)
    result = run_torch(name, dtype, made)
    assert str(result.dtype) == f"torch.{leaf.dtype}"
    assert tuple(result.shape) == leaf.shape == reference.shape
    assert np.isfinite(reference).all() and np.abs(reference).max() < 65504  # nothing overflows, not even in float16
    assert {a.dtype.name for a in made.arrays} <= {dtype, "int64", "bool"}
    if leaf.dtype == "int64":
        assert leaf.noise is None and np.array_equal(result.numpy(), reference)
        return
    assert leaf.noise is not None and leaf.noise.dtype == np.float64 and leaf.noise.shape == leaf.shape
    error = np.abs(result.to(torch.float64).numpy() - reference)
    units = error / (EPS[dtype] * (np.abs(reference) + SMALLEST_NORMAL[dtype]) + leaf.noise)
    assert units.max() <= 32 or (name in CANCELS and dtype == "float32" and error.max() < 1e-6)


def test_embedding_returns_the_leaf() -> None:
    made = sample("embedding", "bfloat16", draws=1)
    leaf, reference = expected(made)
    assert made.arrays[1].shape == (50257, 768) and leaf.dtype == "bfloat16" and leaf.shape == (4, 128, 768)
    assert np.array_equal(run_torch("embedding", "bfloat16", made).to(torch.float64).numpy(), reference)
    assert leaf.noise is not None and (leaf.noise <= EPS["bfloat16"] * np.abs(reference) * (1 + 1e-9)).all()


def digest(made: Sample) -> list[bytes]:
    leaf, reference = expected(made)
    noise = b"" if leaf.noise is None else leaf.noise.tobytes()
    return [a.tobytes() for a in made.arrays] + [reference.tobytes(), noise]


@pytest.mark.parametrize("name", SMALL)
def test_samples_are_reproducible_and_differ(name: str) -> None:
    first, second = CATALOG.samples(group(name, "float32", samples=2), 1)
    again = list(CATALOG.samples(group(name, "float32", samples=2), 1))
    assert [first.index, second.index] == [0, 1]
    assert digest(first) == digest(again[0]) and digest(second) == digest(again[1])
    other = sample(name, "float32", seed=1)
    for different in (second, other):
        assert not np.array_equal(first.arrays[0], different.arrays[0])
        assert [a.shape for a in first.arrays] == [a.shape for a in different.arrays]


def test_samples_do_not_depend_on_the_process() -> None:
    code = (
        "import zlib; from tasks.catalogs.critical.catalog import Critical; from tasks.model import Group\n"
        "(s,) = Critical().samples(Group('critical:swiglu', '', 'float16', 1), 0)\n"
        "print(zlib.crc32(b''.join(a.tobytes() for a in s.arrays)))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    (here,) = Critical().samples(Group("critical:swiglu", "", "float16", 1), 0)
    assert int(other.stdout) == zlib.crc32(b"".join(a.tobytes() for a in here.arrays))


def test_needs_numpy_and_ml_dtypes_alone_where_there_is_no_torch() -> None:
    code = (
        "import sys; from tasks.catalogs.critical import catalog as critical; from tasks.catalogs.critical.catalog import Critical; from tasks.model import Group\n"
        "critical._find_torch_version = lambda: None\n"
        "list(Critical().samples(Group('critical:gelu', '', 'bfloat16', 1), 1)); Critical().version()\n"
        "print([m for m in ('torch', 'scipy', 'onnx', 'ray', 'pandas') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.strip() == b"[]"


def planted(name: str, reference: Callable[..., Any], made: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, name, CriticalOp(name, lambda g: made, reference, lambda torch: torch.relu))


def test_noise_is_zero_where_nothing_moves_and_infinite_where_finiteness_does(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.array([0.0, 1.0, 2.0, np.inf, np.nan])
    planted("step", lambda x: np.where(x > 1.0, np.inf, x), make_critical_call(x), monkeypatch)
    (leaf,) = sample("step", "float32", draws=4).expected
    assert leaf.noise is not None
    assert leaf.noise[1] == np.inf and (leaf.noise[[0, 2, 3, 4]] == 0).all()
    planted("still", lambda x: np.zeros(3), make_critical_call(x), monkeypatch)
    assert sample("still", "float32", draws=4).expected[0].noise is None
    assert sample("relu", "float32", draws=0).expected[0].noise is None


def test_an_integer_that_can_flip_has_a_noise_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.array([[1.0, 0.0, 1.0], [0.0, 5.0, 1.0]])
    planted("tie", lambda x: x.argmax(axis=1).astype(np.int64), make_critical_call(x), monkeypatch)
    (leaf,) = sample("tie", "float32", draws=4).expected
    assert leaf.dtype == "int64" and leaf.reference is not None and leaf.reference.dtype == np.int64
    assert leaf.noise is not None and leaf.noise.dtype == np.float64 and leaf.noise.tolist() == [2.0, 0.0]


def test_a_sample_that_cannot_be_made_is_yielded_with_its_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(x: np.ndarray) -> np.ndarray:
        raise FloatingPointError("planted")

    planted("broken", broken, make_critical_call(np.ones(2)), monkeypatch)
    made = list(CATALOG.samples(group("broken", "float32", samples=2), 1))
    assert [m.index for m in made] == [0, 1]
    for m in made:
        assert m.failure is not None
        assert (m.failure.status, m.failure.stage, m.failure.error_type) == (
            "invalid",
            "reference",
            "FloatingPointError",
        )


def test_the_tanh_form_of_gelu_is_no_case_without_its_argument() -> None:
    """torch computes another function then: a smaller case may not lose it."""
    with pytest.raises(TypeError, match="approximate"):
        ref.gelu_tanh(np.ones(1))  # type: ignore[call-arg]


def test_what_the_catalog_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no op 'critical:matmull'"):
        CATALOG.samples(group("matmull", "float32"), 1)
    with pytest.raises(ValueError, match="no dtype 'int32'"):
        CATALOG.samples(group("matmul", "int32"), 1)
    with pytest.raises(ValueError, match="no op"):
        CATALOG.call(Group("torch:matmul", "", DTYPES[0], 1))
