"""Results defined up to a choice: another right choice passes, a planted fault does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tasks.arrays.tree import TensorSpec, encode_argument_tree
from tasks.judge import definitions
from tasks.judge.error_metrics import compare_outputs
from tasks.judge.policy_files import judge_by_policy, load_policy
from tasks.model import Leaf, Status

POLICY = load_policy("error_units")
G = np.random.default_rng(3)


def kwargs_of(values: dict[str, Any]) -> Any:
    return encode_argument_tree(values)


def verdict(
    name: str,
    inputs: list[np.ndarray],
    right: list[np.ndarray],
    actual: list[np.ndarray],
    *args: Any,
    op_class: str = "choice",
    dtype: str = "float32",
    **kwargs: Any,
) -> Status:
    """The status of float32 (or ``dtype``) outputs ``actual``, the float64 outputs ``right`` being the reference."""
    tree, named = (
        encode_argument_tree((*[TensorSpec(i) for i in range(len(inputs))], *args)),
        encode_argument_tree(kwargs),
    )
    leaves = definitions.predict_defined_leaves(name, tree, named, inputs, right, dtype)
    made = definitions.derive_by_definition(name, tree, named, inputs, actual)
    metrics = compare_outputs(made, leaves)
    return judge_by_policy(metrics, POLICY, "torch:op", op_class, dtype, "float64")[0]


def single(*arrays: np.ndarray) -> list[np.ndarray]:
    """Arrays as a float32 backend returns them."""
    kinds = {"f": np.float32, "c": np.complex64}
    return [a.astype(kinds[a.dtype.kind]) if a.dtype.kind in kinds else a for a in arrays]


def matrices(m: int, n: int, kind: str = "f", batch: tuple[int, ...] = (2,)) -> np.ndarray:
    a = G.standard_normal((*batch, m, n)).astype(np.float32)
    return a + 1j * G.standard_normal(a.shape).astype(np.float32) if kind == "c" else a


def widened(a: np.ndarray) -> np.ndarray:
    return a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)


def adjoint(a: np.ndarray) -> np.ndarray:
    return np.conj(np.swapaxes(a, -1, -2))


# Factorisations --------------------------------------------------------------------------------------------------

Outputs = list[np.ndarray]
Change = Callable[[Outputs], Outputs]


def phases(n: int, kind: str) -> np.ndarray:
    """n numbers of modulus 1."""
    return np.exp(1j * np.arange(1, n + 1)) if kind == "c" else np.where(np.arange(n) % 2, 1.0, -1.0)


@pytest.mark.parametrize("kind", ["f", "c"])
@pytest.mark.parametrize(("m", "n", "full"), [(5, 3, False), (3, 5, True), (4, 4, True), (1, 1, False)])
def test_svd_up_to_phases(m: int, n: int, full: bool, kind: str) -> None:
    a = matrices(m, n, kind)
    u, s, vh = right = list(np.linalg.svd(widened(a), full_matrices=full))
    k = s.shape[-1]
    turn = phases(k, kind)
    other_u, other_v = u.copy(), vh.copy()
    other_u[..., :k] *= turn
    other_v[..., :k, :] *= np.conj(turn)[:, None]

    def status(*actual: np.ndarray) -> Status:
        return verdict("svd", [a], right, single(*actual), full)

    assert status(u, s, vh) is Status.PASS
    assert status(other_u, s, other_v) is Status.PASS
    assert status(other_u, s, vh) is Status.WRONG
    assert status(u * 1.01, s / 1.01, vh) is Status.WRONG
    assert status(u, s * (1 + 1e-3), vh) is Status.WRONG
    assert status(u, -s, -vh) is Status.WRONG
    assert status(u, np.full_like(s, np.nan), vh) is Status.WRONG
    if k > 1:
        swapped = u.copy()
        swapped[..., [0, 1]] = swapped[..., [1, 0]]
        assert status(swapped, s, vh) is Status.WRONG, "columns swapped, their singular values not"
        turned = s[..., ::-1], u[..., k - 1 :: -1] if not full else u, vh[..., ::-1, :]
        if m == k == n or not full:
            assert (
                status(
                    turned[1] if not full else u[..., ::-1],
                    turned[0],
                    vh[..., k - 1 :: -1, :] if not full else vh[..., ::-1, :],
                )
                is Status.WRONG
            ), "unsorted"


def test_svd_within_equal_singular_values_any_basis_is_right() -> None:
    q, _ = np.linalg.qr(G.standard_normal((4, 4)))
    a = np.eye(4, dtype=np.float32)
    assert verdict("svd", [a], [np.eye(4), np.ones(4), np.eye(4)], single(q, np.ones(4), q.T)) is Status.PASS


def test_old_svd_returns_the_columns_of_v() -> None:
    a = matrices(5, 3)
    u, s, vh = np.linalg.svd(widened(a), full_matrices=False)
    right = [u, s, adjoint(vh)]
    assert verdict("old_svd", [a], right, single(-u, s, -adjoint(vh))) is Status.PASS
    assert verdict("old_svd", [a], right, single(-u, s, adjoint(vh))) is Status.WRONG
    zeros = [np.zeros((2, 5, 5)), s, np.zeros((2, 3, 3))]
    assert verdict("old_svd", [a], zeros, single(*zeros), True, False) is Status.PASS
    assert verdict("old_svd", [a], zeros, single(zeros[0], s[..., ::-1], zeros[2]), True, False) is Status.WRONG


@pytest.mark.parametrize("kind", ["f", "c"])
@pytest.mark.parametrize("half", ["L", "U"])
def test_eigh_reads_one_triangle_and_leaves_the_phase_open(half: str, kind: str) -> None:
    a = matrices(4, 4, kind)
    w, v = right = list(np.linalg.eigh(widened(a), half))
    turn = phases(4, kind)

    def status(*actual: np.ndarray) -> Status:
        return verdict("eigh", [a], right, single(*actual), half)

    assert status(w, v) is Status.PASS and status(w, v * turn) is Status.PASS
    assert status(w[..., ::-1], v[..., ::-1]) is Status.WRONG, "not ascending"
    assert status(w, v[..., [1, 0, 2, 3]]) is Status.WRONG
    assert status(w, v * 1.001) is Status.WRONG
    assert status(*np.linalg.eigh(widened(a), "U" if half == "L" else "L")) is Status.WRONG, "the other triangle"


@pytest.mark.parametrize("kind", ["f", "c"])
def test_eig_in_any_order_and_up_to_a_factor(kind: str) -> None:
    a = matrices(5, 5, kind)
    w, v = right = list(np.linalg.eig(widened(a).astype(np.complex128)))
    order = [3, 1, 4, 0, 2]

    def status(*actual: np.ndarray) -> Status:
        return verdict("eig", [a], right, single(*actual))

    assert status(w, v) is Status.PASS
    assert status(w[..., order], v[..., order] * phases(5, "c")) is Status.PASS
    assert status(w[..., order], v) is Status.WRONG
    again = [0, 0, 2, 3, 4]
    assert status(w[..., again], v[..., again]) is Status.WRONG, "a pair twice, another missing"
    assert status(w, v * 2) is Status.WRONG, "columns not of unit length"
    assert status(np.conj(w) * 1.0, v) is Status.WRONG
    assert verdict("eigvals", [a], [w], single(w[..., order])) is Status.PASS
    assert verdict("eigvals", [a], [w], single(w[..., again])) is Status.WRONG
    assert verdict("eigvals", [a], [w], single(w * (1 + 1e-3))) is Status.WRONG


def test_eigenvalues_of_a_defective_matrix_raise_no_alarm() -> None:
    a = np.eye(4, dtype=np.float32) + np.eye(4, k=1, dtype=np.float32)  # one eigenvalue, four times: moves by ε^(1/4)
    exact, computed = (
        np.linalg.eigvals(a.astype(np.float64)),
        np.linalg.eigvals(a + np.float32(1e-7) * np.eye(4, k=-3, dtype=np.float32)),
    )
    assert np.abs(computed - 1).max() > 1e-3
    assert verdict("eigvals", [a], [exact], single(computed.astype(np.complex128))) is Status.PASS


@pytest.mark.parametrize("kind", ["f", "c"])
@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
@pytest.mark.parametrize(("m", "n"), [(5, 3), (3, 5)])
def test_qr_up_to_phases(m: int, n: int, mode: str, kind: str) -> None:
    a = matrices(m, n, kind)
    q, r = np.linalg.qr(widened(a), "reduced" if mode == "r" else mode)
    turn = phases(r.shape[-2], kind)
    none = np.zeros(0)

    def status(q: np.ndarray, r: np.ndarray) -> Status:
        return verdict("qr", [a], right, single(none if mode == "r" else q, r), mode)

    right = [none if mode == "r" else q, r]
    assert status(q, r) is Status.PASS and status(q * turn, np.conj(turn)[:, None] * r) is Status.PASS
    assert status(q, r * (1 + 1e-3)) is Status.WRONG
    low = r.copy()
    low[..., 1, 0] += 1e-6
    assert status(q, low) is Status.WRONG, "R has something below its diagonal"
    if mode != "r":
        assert status(q * turn, r) is Status.WRONG
        assert status(q * 2, r / 2) is Status.WRONG, "the product is right, Q is not orthogonal"


def test_lu_by_any_good_pivots() -> None:
    a = matrices(3, 3, batch=())
    scipy = pytest.importorskip("scipy.linalg")
    right = [np.asarray(x) for x in scipy.lu(widened(a))]
    assert verdict("lu", [a], right, single(*right)) is Status.PASS
    p, lower, upper = right
    assert verdict("lu", [a], right, single(p[::-1], lower, upper)) is Status.WRONG
    assert verdict("lu", [a], right, single(p, lower * 2, upper / 2)) is Status.WRONG, "L's diagonal is not 1"
    assert verdict("lu", [a], right, single(p, lower, upper * (1 + 1e-3))) is Status.WRONG
    packed, pivots = scipy.lu_factor(widened(a))
    pivots = (pivots + 1).astype(np.int32)
    factors = [packed, pivots]
    assert verdict("lu_factor", [a], factors, single(packed, pivots)) is Status.PASS
    for bad in (pivots * 0, pivots + 7, pivots[::-1].copy(), np.full_like(pivots, -(2**31))):
        if not np.array_equal(bad, pivots):
            assert verdict("lu_factor", [a], factors, single(packed, bad)) is Status.WRONG


def test_lstsq_without_full_rank_takes_any_minimiser() -> None:
    a = matrices(6, 3, batch=())
    a[:, 2] = a[:, 0]
    b = matrices(6, 2, batch=())
    x = np.linalg.lstsq(widened(a), widened(b), rcond=None)[0]
    other = x + np.array([1.0, 0.0, -1.0])[:, None]  # a·(1, 0, −1) = 0
    assert verdict("lstsq", [a, b], [x], single(other)) is Status.PASS
    assert verdict("lstsq", [a, b], [x], single(x + 0.01)) is Status.WRONG
    wide, y = matrices(3, 6, batch=()), matrices(3, 2, batch=())
    least = np.linalg.lstsq(widened(wide), widened(y), rcond=None)[0]
    kernel = np.linalg.svd(widened(wide))[2][-1]
    assert verdict("lstsq", [wide, y], [least], single(least)) is Status.PASS
    assert verdict("lstsq", [wide, y], [least], single(least + 0.1 * kernel[:, None])) is Status.WRONG, (
        "not the shortest"
    )


def test_singular_values_alone() -> None:
    a = matrices(4, 3)
    s = np.linalg.svd(widened(a), compute_uv=False)
    assert verdict("spectrum", [a], [s], single(s)) is Status.PASS
    assert verdict("spectrum", [a], [s], single(s[..., ::-1])) is Status.WRONG


# Selection -------------------------------------------------------------------------------------------------------

X = np.array([[3, 1, 2, 1, 3], [0, 0, 5, 0, -1]], np.float32)
ORDER = np.argsort(X, -1, kind="stable")
SORTED = np.take_along_axis(X, ORDER, -1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sort_with_ties_in_any_order(dtype: str) -> None:
    x, values = X.astype(dtype), SORTED.astype(dtype)
    right = [values.astype(np.float64), ORDER]
    ties = ORDER.copy()
    ties[0, [0, 1]] = ties[0, [1, 0]]

    def status(values: np.ndarray, index: np.ndarray, **kwargs: Any) -> Status:
        return verdict("sort", [x], right, [values, index], dtype=dtype, **kwargs)

    assert status(values, ORDER) is Status.PASS and status(values, ties) is Status.PASS
    assert status(values, ORDER, stable=True) is Status.PASS and status(values, ties, stable=True) is Status.WRONG
    assert status(values[..., ::-1], ORDER[..., ::-1]) is Status.WRONG, "descending"
    assert status(values, ORDER[..., ::-1]) is Status.WRONG
    near = values.copy()
    near[0, 0] = np.nextafter(near[0, 0], near.dtype.type(0))
    assert status(near, ORDER) is Status.WRONG, "one spacing off"
    for place in (99, -1, -(2**63)):
        bad = ORDER.copy()
        bad[0, 0] = place
        assert status(values, bad) is Status.WRONG, "an index out of range"
    twice = ORDER.copy()
    twice[0, 0] = twice[0, 1]
    assert status(values, twice) is Status.WRONG, "an equal element taken twice"
    assert verdict("argsort", [x], [ORDER], [ties], dtype=dtype) is Status.PASS
    assert verdict("argsort", [x], [ORDER], [ORDER[..., ::-1]], dtype=dtype) is Status.WRONG
    assert verdict("argsort", [x], [ORDER], [ORDER + 5], dtype=dtype) is Status.WRONG


def test_sort_of_nan_and_of_a_scalar() -> None:
    x = np.array([np.nan, 1, np.nan], np.float32)
    right = [np.array([1, np.nan, np.nan]), np.array([1, 0, 2])]
    assert verdict("sort", [x], right, [right[0].astype(np.float32), np.array([1, 2, 0])]) is Status.PASS
    assert verdict("sort", [x], right, [np.array([1, 1, np.nan], np.float32), np.array([1, 2, 0])]) is Status.WRONG
    one = [np.array(2.0, np.float32)]
    assert verdict("sort", one, [np.array(2.0), np.array(0)], [np.array(2.0, np.float32), np.array(0)]) is Status.PASS
    assert verdict("sort", one, [np.array(2.0), np.array(0)], [np.array(2.0, np.float32), np.array(1)]) is Status.WRONG


def test_topk_takes_any_of_the_equal() -> None:
    right = [np.array([[3.0, 3.0, 2.0], [5.0, 0.0, 0.0]]), np.array([[0, 4, 2], [2, 0, 1]])]
    values = right[0].astype(np.float32)
    assert verdict("topk", [X], right, [values, np.array([[4, 0, 2], [2, 3, 0]])], 3) is Status.PASS
    assert verdict("topk", [X], right, [values, np.array([[4, 4, 2], [2, 3, 0]])], 3) is Status.WRONG
    turned = [values[:, ::-1].copy(), right[1][:, ::-1].copy()]
    assert verdict("topk", [X], right, turned, 3, -1, True, False) is Status.PASS
    assert verdict("topk", [X], right, turned, 3) is Status.WRONG


@pytest.mark.parametrize(("name", "args"), [("kthvalue", (2,)), ("median", (-1,)), ("median", (1, True))])
def test_an_index_of_any_equal_element(name: str, args: tuple[Any, ...]) -> None:
    values, index, other = np.array([1.0, 0.0]), np.array([1, 0]), np.array([3, 3])
    if args[-1] is True:
        values, index, other = values[:, None], index[:, None], other[:, None]
    args = (2, 1) if name == "kthvalue" else args
    assert verdict(name, [X], [values, index], [values.astype(np.float32), other], *args) is Status.PASS
    assert verdict(name, [X], [values, index], [values.astype(np.float32), other + 1], *args) is Status.WRONG
    assert verdict(name, [X], [values, index], [values.astype(np.float32), other + 2], *args) is Status.WRONG


def test_median_of_everything_has_no_index() -> None:
    assert verdict("median", [X], [np.array(1.0)], [np.array(1.0, np.float32)]) is Status.PASS
    assert verdict("median", [X], [np.array(1.0)], [np.array(2.0, np.float32)]) is Status.WRONG


def test_mode_may_be_any_value_found_most_often() -> None:
    right = [np.array([1.0, 0.0]), np.array([3, 3])]
    assert verdict("mode", [X], right, [np.array([3, 0], np.float32), np.array([4, 0])]) is Status.PASS
    assert verdict("mode", [X], right, [np.array([2, 0], np.float32), np.array([2, 0])]) is Status.WRONG
    assert verdict("mode", [X], right, [np.array([3, 0], np.float32), np.array([2, 0])]) is Status.WRONG


def test_a_running_maximum_may_not_look_ahead() -> None:
    values, index = np.maximum.accumulate(X, -1), np.array([[0, 0, 0, 0, 4], [0, 1, 2, 2, 2]])
    right = [values.astype(np.float64), index]
    first = np.array([[0, 0, 0, 0, 0], [0, 0, 2, 2, 2]])
    assert verdict("cumulative", [X], right, [values, first], 1) is Status.PASS
    assert verdict("cumulative", [X], right, [values, np.full_like(first, 4)], 1) is Status.WRONG
    ahead = first.copy()
    ahead[0, 0] = 4
    assert verdict("cumulative", [X], right, [values, ahead], 1) is Status.WRONG


def test_max_pool_indices() -> None:
    x = np.array([[[1, 1, 0, 2]]], np.float32)
    right = [np.array([[[1.0, 2.0]]]), np.array([[[0, 3]]])]
    values = right[0].astype(np.float32)
    assert verdict("max_pool1d", [x], right, [values, np.array([[[1, 3]]])], 2) is Status.PASS
    assert verdict("max_pool1d", [x], right, [values, np.array([[[2, 3]]])], 2) is Status.WRONG
    assert verdict("max_pool1d", [x], right, [values, np.array([[[1, 4]]])], 2) is Status.WRONG
    assert verdict("max_pool1d", [x], right[:1], [values], 2) is Status.PASS
    assert verdict("max_pool1d", [x], right[:1], [values * 2], 2) is Status.WRONG


def test_unique_in_any_order_where_it_need_not_be_sorted() -> None:
    x = np.array([3, 1, 3], np.float32)
    right = [np.array([1.0, 3.0]), np.array([1, 0, 1]), np.array([1, 2])]
    turned = [np.array([3, 1], np.float32), np.array([0, 1, 0]), np.array([2, 1])]
    assert verdict("unique", [x], right, turned, False, True, True) is Status.PASS
    assert verdict("unique", [x], right, turned, True, True, True) is Status.WRONG
    assert verdict("unique", [x], right, [turned[0], turned[1], turned[2][::-1]], False, True, True) is Status.WRONG
    assert verdict("unique", [x], right, [turned[0], turned[1] + 1, turned[2]], False, True, True) is Status.WRONG


# Random numbers --------------------------------------------------------------------------------------------------


def drawn(
    make: Callable[[np.random.Generator], np.ndarray], actual: np.ndarray, name: str = "moments", dtype: str = "float32"
) -> Status:
    none = encode_argument_tree(()), encode_argument_tree({})
    draws = [definitions.derive_by_definition(name, *none, [], [make(np.random.default_rng(k))]) for k in range(64)]
    leaves: list[Leaf] = definitions.expect_moments(draws, dtype)
    made = definitions.derive_by_definition(name, *none, [], [actual])
    return judge_by_policy(compare_outputs(made, leaves), POLICY, "torch:op", "random", dtype, "float64")[0]


@pytest.mark.parametrize("n", [20, 1000])
def test_moments_and_range(n: int) -> None:
    g = np.random.default_rng(99)

    def uniform(g: np.random.Generator) -> np.ndarray:
        return g.random(n)

    assert drawn(uniform, g.random(n).astype(np.float32)) is Status.PASS
    assert drawn(uniform, (g.random(n) + 5).astype(np.float32)) is Status.WRONG, "beyond the range"
    assert drawn(uniform, np.full(n, 0.5, np.float32)) is Status.WRONG, "constant"
    assert drawn(uniform, np.where(np.arange(n) == 3, np.nan, g.random(n)).astype(np.float32)) is Status.WRONG
    if n == 1000:
        assert drawn(uniform, (g.random(n) * 0.8).astype(np.float32)) is Status.WRONG, "a wrong mean"
        assert drawn(uniform, (g.random(n) * 0.4 + 0.3).astype(np.float32)) is Status.WRONG, "a wrong spread"
        last = g.random(n).astype(np.float32)
        last[-1] = 40
        assert drawn(uniform, last) is Status.WRONG, "one value beyond the range"


def test_dropout_without_its_scale() -> None:
    x = np.random.default_rng(5).standard_normal(4096) + 1

    def dropout(g: np.random.Generator) -> np.ndarray:
        return np.where(g.random(x.shape) < 0.5, 0, x * 2)

    kept = np.random.default_rng(7).random(x.shape) < 0.5
    assert drawn(dropout, np.where(kept, x * 2, 0).astype(np.float32)) is Status.PASS
    assert drawn(dropout, np.where(kept, x, 0).astype(np.float32)) is Status.WRONG


def test_no_false_alarm_over_many_draws() -> None:
    makers: list[tuple[str, Callable[[np.random.Generator], np.ndarray]]] = [
        ("moments", lambda g: g.exponential(size=125)),
        ("moments", lambda g: g.standard_normal(16)),
        ("moments", lambda g: (g.random(50) < 0.5) * 1.0),
        ("moments", lambda g: g.geometric(0.3, 25) * 1.0),
        ("squashed moments", lambda g: g.standard_cauchy(125)),
        ("squashed moments", lambda g: g.lognormal(0, 2, 125)),
    ]
    for name, make in makers:
        none = encode_argument_tree(()), encode_argument_tree({})
        draws = [definitions.derive_by_definition(name, *none, [], [make(np.random.default_rng(k))]) for k in range(64)]
        leaves = definitions.expect_moments(draws, "float32")
        for k in range(1000, 1500):
            made = definitions.derive_by_definition(
                name, *none, [], [make(np.random.default_rng(k)).astype(np.float32)]
            )
            units = compare_outputs(made, leaves).error_units
            assert units is not None and units <= definitions.RANGE_UNITS, (name, k, units)


def test_a_statistic_that_never_varies_allows_for_rounding() -> None:
    x = np.linspace(0.1, 7, 100)
    assert drawn(lambda g: x, x.astype(np.float32)) is Status.PASS
    assert drawn(lambda g: x, x.astype(np.float16).astype(np.float32)) is Status.WRONG


def test_too_few_elements_have_no_moments() -> None:
    assert (
        definitions.derive_by_definition(
            "moments", encode_argument_tree(()), encode_argument_tree({}), [], [np.ones(3)]
        )
        == []
    )
    with pytest.raises(KeyError):
        definitions.derive_by_definition(
            "no such definition", encode_argument_tree(()), encode_argument_tree({}), [], []
        )


def test_a_random_op_is_called_without_its_seed_and_one_that_draws_nothing_is_judged_by_its_numbers() -> None:
    from tasks.arrays import torch_tree
    from tasks.arrays.tree import decode_argument_tree
    from tasks.catalogs.torch.opinfo import TorchOpInfo
    from tasks.catalogs.torch.samples import REPEATS
    from tasks.model import Group, OpClass

    catalog, group = TorchOpInfo(), Group("torch:nn.functional.dropout", "", "float32", 8)
    samples = list(catalog.samples(group, 1))
    drawn = [s for s in samples if s.definition]
    assert drawn and all(s.op_class is OpClass.RANDOM and s.oracle == "float64" and s.derived for s in drawn)
    assert any(s.repeats == REPEATS for s in drawn)
    sample = next(s for s in drawn if s.repeats == REPEATS)

    def run() -> np.ndarray:
        leaf = torch_tree.make_tensor_decoder(sample.arrays.__getitem__, "cpu")
        return torch_tree.make_output_array(
            catalog.call(group)(*decode_argument_tree(sample.args, leaf), **decode_argument_tree(sample.kwargs, leaf))
        )

    assert run().tobytes() != run().tobytes()
    still = [s for s in samples if s.op_class is OpClass.COMPOSITE]
    assert still and all(s.expected[0].reference is not None and s.repeats == 1 for s in still)


def test_a_random_basis_may_be_an_unlucky_one() -> None:
    """The share of a singular value that a random basis loses has a heavy tail: a draw in a hundred is far outside the
    others' range."""
    generator = np.random.default_rng(0)
    u, v = (np.linalg.qr(generator.normal(size=(6, 6)))[0] for _ in range(2))
    a = u * np.array([100.0, 40, 30, 4, 1, 0.5]) @ v.T

    def draw(count: int = 3) -> list[np.ndarray]:
        basis = np.linalg.qr(a @ generator.normal(size=(6, count)))[0]
        w, s, vh = np.linalg.svd(basis.T @ a, full_matrices=False)
        return [basis @ w, s, vh.T]

    low, high = definitions.RANGES["low rank"]([a, np.eye(6)], {}, [draw() for _ in range(16)])[0]
    many = np.stack([draw()[1] for _ in range(5000)])
    assert ((low <= many) & (many <= high * (1 + 1e-12))).all()
    # Where A has rank 3, every basis of three vectors has it whole.
    a = u[:, :3] * np.array([100.0, 40, 30]) @ v.T[:3]
    low, high = definitions.RANGES["low rank"]([a, np.eye(6)], {}, [draw() for _ in range(16)])[0]
    assert np.array_equal(low, high)
