"""The noise floor: a draw means the same for every catalog, and how many there are is decided in one place."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tasks import catalogs
from tasks.arrays import noise
from tasks.arrays.widened import compute_in_float64
from tasks.catalogs import user_definitions
from tasks.catalogs.base import Sample
from tasks.catalogs.critical.ops import OPS, CriticalOp
from tasks.catalogs.onnx import float64
from tasks.catalogs.torch.samples import OpInfoSampleMaker
from tasks.catalogs.user import load_kernels
from tasks.model import EPS, Group, Leaf, OpClass

X = np.linspace(1, 2, 40, dtype=np.float32)
Seen = list[np.ndarray]


def in_critical(seen: Seen, op_class: str, off: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reference(x: np.ndarray) -> np.ndarray:
        seen.append(x.copy())
        return np.cumsum(x)

    op = CriticalOp(op_class, lambda g: ((X.astype(np.float64),), {}), reference, lambda torch: lambda x: x.cumsum(0))
    monkeypatch.setitem(OPS, op_class, op)
    list(catalogs.get_catalog("critical").samples(Group(f"critical:{op_class}", "", "float32", 1), 4))


def in_user(seen: Seen, op_class: str, off: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "k.py").write_text(
        "import numpy as np\ndef kernel(x): return x.cumsum(0)\nseen = []\n"
        "def reference(x):\n    seen.append(x.copy())\n    return np.cumsum(x)\n"
    )
    inputs = {"x": {"shape": ["n"], "data": X.tolist()}}
    kernel = {"name": "op", "kernel": "k.py:kernel", "reference": "k.py:reference", "inputs": inputs}
    kernel |= {"dims": {"n": [40]}, "op_class": op_class}
    given = {"deadline_s": 60.0, "sources": [{"at": 0, "root": str(tmp_path), "modules": [], "kernels": [kernel]}]}
    monkeypatch.setattr(user_definitions, "_told", [json.dumps(given)])
    list(catalogs.get_catalog("user").samples(Group("user:op", "", "float32", 1), 4))
    seen += load_kernels.load_user_ops()["op"].function("reference").__globals__["seen"]


def in_torch(seen: Seen, op_class: str, off: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def op(x: Any) -> Any:
        if x.dtype != torch.float64:
            return x.cumsum(0) * (1 + off)
        seen.append(x.numpy().copy())
        return x.cumsum(0)

    maker = OpInfoSampleMaker(SimpleNamespace(name=op_class, variant_test_name="", op=op, ref=None), "float32", 4)
    maker.make(0, SimpleNamespace(input=torch.from_numpy(X), args=(), kwargs={}))


def in_onnx(seen: Seen, op_class: str, off: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx import TensorProto, helper

    run = float64.EvaluatedGraph.run

    def watched(self: float64.EvaluatedGraph, feeds: dict[str, Any]) -> dict[str, Any]:
        seen.append(feeds["x"].copy())
        return run(self, feeds)

    monkeypatch.setattr(float64.EvaluatedGraph, "run", watched)
    axis = helper.make_node("Constant", [], ["axis"], value_int=0)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [40]) for name in "xy")
    graph = helper.make_graph([axis, helper.make_node("CumSum", ["x", "axis"], ["y"])], "g", [x], [y])
    stored = Leaf("float32", (40,), np.cumsum(X.astype(np.float64)) * (1 + off))
    sample = Sample(0, expected=[stored], op_class=OpClass(op_class))
    float64.add_float64_oracle(sample, SimpleNamespace(name="case", model=helper.make_model(graph)), [X], 4)
    assert sample.oracle == "float64"


CATALOGS: dict[str, Callable[..., None]] = {
    "critical": in_critical,
    "user": in_user,
    "torch": in_torch,
    "onnx": in_onnx,
}


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., np.ndarray]:
    """drawn(catalog, class, relative error of what was computed in float32): s·u of every draw, one row each."""
    from tasks.judge import op_classes

    def drawn(catalog: str, op_class: str = "reduction", off: float = 0.0) -> np.ndarray:
        placement = op_classes.Placement(OpClass(op_class), "planted")
        monkeypatch.setattr(op_classes, "find_op_class", lambda *args, **kwargs: placement)
        seen: Seen = []
        CATALOGS[catalog](seen, op_class, off, tmp_path, monkeypatch)
        exact = X.astype(np.float64)
        moved = [x for x in seen if x.dtype == np.float64 and not np.array_equal(x, exact)]
        assert len(moved) in (len(seen) - 1, len(seen) - 2)  # the others are the exact inputs
        return (np.stack(moved) / exact - 1) / EPS["float32"]

    return drawn


@pytest.mark.parametrize("catalog", CATALOGS)
def test_a_draw_is_one_evaluation_with_the_same_signs_and_sizes_in_every_catalog(
    catalog: str, drawn: Callable[..., np.ndarray]
) -> None:
    found = drawn(catalog)
    # Nobody has computed critical and user ops in the dtype under test: nothing shows that 4 draws are enough.
    assert len(found) == {"critical": 16, "user": 16, "torch": 4, "onnx": 4}[catalog]
    expected = [noise.perturb_by_noise(np.ones(40), EPS["float32"], draw, 1) for draw in range(len(found))]
    np.testing.assert_allclose(found, (np.stack(expected) - 1) / EPS["float32"], atol=1e-8)
    assert (np.abs(found) >= 0.5 - 1e-8).all() and (np.abs(found) <= 1 + 1e-8).all()
    assert (np.sign(found[2:4]) == -np.sign(found[:2])).all()
    assert (np.abs(found[2:4]) != np.abs(found[:2])).any(1).all()
    assert all((np.sign(a) != np.sign(b)).any() for k, a in enumerate(found) for b in found[:k])


@pytest.mark.parametrize("catalog", CATALOGS)
def test_how_many_draws_an_op_gets_is_decided_by_its_class(catalog: str, drawn: Callable[..., np.ndarray]) -> None:
    assert len(drawn(catalog, "discontinuous")) == noise.STEP_DRAWS
    if catalog != "user":
        assert len(drawn(catalog, "elementary")) == (noise.FEW_DRAWS if catalog in ("torch", "onnx") else 16)


@pytest.mark.parametrize("catalog", ["torch", "onnx"])
def test_a_result_far_off_is_met_with_more_draws(catalog: str, drawn: Callable[..., np.ndarray]) -> None:
    assert len(drawn(catalog, off=1e-5)) == noise.MORE_DRAWS


def test_many_draws_together_are_those_made_one_by_one() -> None:
    for x in (np.float64(3.0), np.linspace(1, 2, 7), np.ones((3, 5)) * (1 + 2j), np.empty(0)):
        each = noise.perturb_by_each_draw(np.asarray(x), 1e-3, range(20), 3)
        for draw, y in enumerate(each):
            assert y.shape == np.shape(x) and np.array_equal(y, noise.perturb_by_noise(np.asarray(x), 1e-3, draw, 3))


def test_a_large_array_is_moved_as_its_first_elements_are() -> None:
    x = np.ones(300_000)
    y = noise.perturb_by_noise(x, 1e-3, 5, 2)
    parts = [noise.perturb_by_noise(x[at : at + 8192], 1e-3, 5, 2, at) for at in range(0, len(x), 8192)]
    assert np.array_equal(np.concatenate(parts), y)
    assert np.array_equal(y[:1000], noise.perturb_by_noise(x[:1000], 1e-3, 5, 2))
    assert 0.0005 <= np.abs(y - 1).min() and np.abs(y - 1).max() <= 0.001


def test_what_a_draw_refuses_or_returns_in_another_shape_has_no_bound() -> None:
    y, other = np.zeros(3), np.ones(4)
    answers: list[list[np.ndarray] | None] = [None, [other], [y, y]]
    for found in answers:
        many = [found] * 8
        (floor,) = noise.compute_noise_floor([y], lambda draws, many=many: many[: len(draws)], OpClass.COMPOSITE, 4, 3)  # type: ignore[misc]
        assert floor is not None and (floor == np.inf).all()


def test_no_draws_no_floor() -> None:
    assert noise.compute_noise_floor([np.ones(3)], lambda draws: iter(()), OpClass.COMPOSITE, 0, 3) == [None]


def test_the_floor_of_a_large_result_is_that_of_its_parts() -> None:
    """Large results are compared a block at a time: each element has the floor that it has in a small one."""
    y = np.linspace(-1, 1, 3 * 50_000).reshape(3, 50_000)
    y[1, 7], y[2, 49_999] = np.nan, np.inf
    many = [y * (1 + k * 1e-3) for k in range(1, 5)]
    many[2][0, 5], many[3][2, 49_999] = np.nan, 1.0
    for turn in (lambda x: x, np.transpose, lambda x: x.astype(np.complex128)):
        turned = [[turn(x)] for x in many]
        (whole,) = noise.compute_noise_floor([turn(y)], lambda draws, turned=turned: turned, OpClass.COMPOSITE, 4, 1)  # type: ignore[misc]
        assert whole is not None and np.isinf(whole).sum() == 2
        for at in range(0, y.size, 997):
            part = slice(at, at + 997)
            cut = [[x.reshape(-1)[part]] for (x,) in turned]
            (floor,) = noise.compute_noise_floor(
                [turn(y).reshape(-1)[part]], lambda draws, cut=cut: cut, OpClass.COMPOSITE, 4, 1
            )  # type: ignore[misc]
            assert floor is not None and np.array_equal(floor, whole.reshape(-1)[part])


def test_where_rows_of_a_kernel_s_result_jump_others_may() -> None:
    """A query that meets a tie takes one key's values or another's: an element at which both are equal does not
    move."""
    y = np.ones((40, 8))
    quiet = np.full((40, 8), 1e-7)
    (delta,) = noise.compute_kernel_floor([y], [quiet], [y], "float32")
    assert delta is not None and np.allclose(delta, quiet, rtol=1e-12)
    one, many = quiet.copy(), quiet.copy()
    one[3, :4] = 2.0
    many[::8, :4] = 2.0
    (delta,) = noise.compute_kernel_floor([y], [one], [y], "float32")
    assert delta is not None and delta[3].min() > 1.0 and np.allclose(delta[4:], quiet[4:], rtol=1e-12)
    (delta,) = noise.compute_kernel_floor([y], [many], [y], "float32")
    assert delta is not None and delta.min() > 0.3 and delta[0, 0] == 2.0


def test_a_row_of_many_magnitudes_jumps_where_few_of_it_keep_half_of_their_own_size() -> None:
    """Another key's values are as far off as both are high: none of ten is near the largest of its row."""
    y = np.ones((3, 1)) * 10.0 ** np.arange(-5, 5)
    quiet = 1e-7 * y
    for moved, jumps in ((8, True), (7, False)):
        delta = quiet.copy()
        delta[1, :moved] = 0.6 * y[1, :moved]
        (found,) = noise.compute_kernel_floor([y], [delta], [y], "float32")
        assert found is not None and (found[1].min() > 0.1) == jumps
        assert np.allclose(found[::2], quiet[::2], rtol=1e-9, atol=1e-37)


@pytest.mark.parametrize(("dtype", "lost"), [("float32", 2.0**-96), ("bfloat16", 2.0**-96), ("float64", 2.0**-992)])
def test_what_a_factor_that_underflows_loses_is_in_the_floor(dtype: str, lost: float) -> None:
    """exp(-100) is 0 in float32: what it weighs is lost, however large."""
    (delta,) = noise.compute_kernel_floor(
        [np.ones(2)], [np.zeros(2)], [np.array([1.0, 2.0**30]), np.array([np.inf])], dtype
    )
    assert delta is not None and (delta == lost).all()
    assert noise.compute_kernel_floor([np.ones(2)], [None], [np.ones(2)], dtype) == [None]


def test_rows_of_zeros_and_rows_beside_higher_ones_do_not_widen_all() -> None:
    """A constant row of layer_norm is 0 and stands on an edge; the others do not."""
    y, quiet = np.ones((20, 8)), np.full((20, 8), 1e-7)
    y[:4], quiet[:4] = 0.0, 0.0
    y[4:8], quiet[4:8] = 1e-3, 1e-2
    (delta,) = noise.compute_kernel_floor([y], [quiet], [y], "float32")
    assert delta is not None and np.allclose(delta, quiet, rtol=1e-9, atol=1e-37)


def test_one_element_makes_a_gradient_s_row_jump() -> None:
    y, quiet = np.ones((40, 8)), np.full((40, 8), 1e-9)
    quiet[0, 2] = 1.5
    (found,) = noise.compute_kernel_floor([y], [quiet], [y], "float32", 0.0)
    assert found is not None and found[0].min() > 0.5 and found[1:].max() < 2e-9
    (found,) = noise.compute_kernel_floor([y], [quiet], [y], "float32")
    assert found is not None and found[0, 2] == 1.5 and found[0, 0] < 2e-9


def _jittered(draw: int, place: int) -> bytes:
    return bytes(
        noise.perturb_tensor(torch.linspace(1.0, 2.0, 64, dtype=torch.float64), 1e-3, draw, place).numpy().tobytes()
    )


def _moved(draw: int, place: int) -> bytes:
    return noise.perturb_by_noise(np.ones(64), 1e-3, draw, place).tobytes()


def _rounded(draw: int, place: int) -> bytes:
    with compute_in_float64(1e-3, draw, places=itertools.count(place)):
        return bytes((torch.ones(64) + 1).numpy().tobytes())


@pytest.mark.parametrize("factors", [_jittered, _moved, _rounded])
def test_no_draw_of_a_tensor_is_that_of_another_draw(factors: Callable[[int, int], bytes]) -> None:
    assert len({factors(draw, 3) for draw in range(48)}) == 48
    assert len({factors(0, place) for place in range(48)}) == 48


def test_what_is_moved_beside_the_results_has_other_places() -> None:
    """An input and the result of the same number once had the same factors, so that their errors went together."""
    places = itertools.count(1)
    given = noise.perturb_by_noise(np.ones(64), 1e-3, 0, next(places))
    with compute_in_float64(1e-3, 0, places=places):
        made = (torch.ones(64) * 1).numpy()
    assert not np.array_equal(given, made)
