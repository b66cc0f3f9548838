"""NumPy references that cast: rounded where they cast, told, and computed in float64 everywhere else."""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tasks.arrays import noise
from tasks.catalogs.user import of_numpy, of_torch
from tasks.graphs.cast_roundings import CastRoundings
from tasks.model import round_to_dtype

X = np.random.default_rng(0).uniform(1, 200, (16, 48)).astype(np.float32).astype(np.float64)
W = np.random.default_rng(1).standard_normal((48, 8)).astype(np.float32).astype(np.float64)


def into_memory(x: np.ndarray) -> np.ndarray:
    kept = np.empty(x.shape, np.float16)
    kept[...] = x
    return x - kept


def like_another(x: np.ndarray) -> np.ndarray:
    kept = np.zeros_like(x, dtype=ml_dtypes.bfloat16)
    kept[...] = x
    return x - kept


def in_place(x: np.ndarray) -> np.ndarray:
    h = x.astype(np.float16)
    h += x
    return h.astype(np.float64)


def next_above(x: np.ndarray) -> np.ndarray:
    near = x.astype(np.float16)
    return np.where(near < x, np.nextafter(near, np.float16(np.inf)), near).astype(np.float64)


def as_bits(x: np.ndarray) -> np.ndarray:
    return x - (x.astype(np.float16).view(np.uint16) & np.uint16(0xFFF0)).view(np.float16)


def writing(write: Callable[[np.ndarray, np.ndarray], object]) -> Callable[[np.ndarray], np.ndarray]:
    """A reference that writes to a float16 array by a function of NumPy's."""

    def reference(x: np.ndarray) -> np.ndarray:
        kept = np.zeros(x.shape, np.float16)
        write(kept, x)
        return x - kept

    return reference


def through_bytes(x: np.ndarray) -> np.ndarray:
    return x - np.frombuffer(x.astype(np.float16).tobytes(), np.float16).reshape(x.shape)


@pytest.mark.parametrize(
    ("reference", "rounds"),
    [
        (lambda x: x - x.astype(np.float16).astype(np.float32), "float16"),
        (lambda x: x - np.float16(x), "float16"),
        (lambda x: x - np.asarray(x, np.float16), "float16"),
        (lambda x: x - np.array(x, dtype="float16"), "float16"),
        (lambda x: x - x.astype(ml_dtypes.bfloat16).astype(x.dtype), "bfloat16"),
        (lambda x: x - x.astype(ml_dtypes.float8_e4m3fn), "float8_e4m3fn"),
        (lambda x: x == x.T.astype(np.float16).T, "float16"),
        (lambda x: x - x.astype(np.int32), "int32"),
        (lambda x: (x / 3).astype(np.float32).astype(np.float64), "float32"),
        (lambda x: (x / 3).astype(x.astype(np.float16).dtype), "float16"),
        (into_memory, "float16"),
        (like_another, "bfloat16"),
        (in_place, "float16"),
        (next_above, "float16"),
        (as_bits, "float16,bits"),
        (through_bytes, "float16"),
        (writing(lambda kept, x: np.copyto(kept, x, casting="unsafe")), "float16"),
        (writing(lambda kept, x: kept.fill(0.1)), "float16"),
        (writing(lambda kept, x: np.fill_diagonal(kept, 0.1)), "float16"),
        (writing(lambda kept, x: np.put(kept, np.arange(x.size), x)), "float16"),
        (writing(lambda kept, x: kept.put(np.arange(9), x[0])), "float16"),
        (writing(lambda kept, x: np.put_along_axis(kept, np.argsort(x, -1), x, -1)), "float16"),
        (writing(lambda kept, x: np.add.at(kept, np.arange(9), x[:9])), "float16"),
        (writing(lambda kept, x: setattr(kept, "flat", x)), "float16"),
        (lambda x: np.exp(-x), ""),
        (lambda x: x - np.float32(0.5), ""),
        (lambda x: x.astype(np.float64), ""),
    ],
)
def test_what_a_reference_casts_to_is_told_and_rounds_as_numpy_does(reference: Callable[..., Any], rounds: str) -> None:
    told: list[str] = []
    found = of_numpy.make_numpy_evaluator(reference, told)({"x": X}, None, None)
    assert ",".join(told) == rounds
    y = found[0] if isinstance(found, list) else found
    assert not rounds or y.dtype in (np.float64, np.bool_)
    np.testing.assert_array_equal(np.asarray(y, np.float64), np.asarray(reference(X.copy()), np.float64))


def test_what_was_cast_is_computed_with_in_float64() -> None:
    def reference(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        h = (x @ w).astype(np.float16)
        assert h.dtype == np.float16 and np.finfo(h.dtype).bits == 16
        return h / (1 + np.square(h).mean(-1, keepdims=True))

    (found,) = of_numpy.make_numpy_evaluator(reference, [])({"x": X, "w": W}, None, None)
    h = (X @ W).astype(np.float16).astype(np.float64)
    np.testing.assert_allclose(found, h / (1 + np.square(h).mean(-1, keepdims=True)), rtol=1e-14)


def test_a_reference_in_float32_alone_is_left_to_be_refused() -> None:
    for reference in (lambda x: np.exp(np.float32(x) / 300), lambda x: np.sum(x, -1, dtype=np.float32)):
        told: list[str] = []
        assert of_numpy.make_numpy_evaluator(reference, told)({"x": X}, None, None).dtype == np.float32 and not told


def test_a_reference_that_takes_no_watched_arrays_is_called_as_it_is() -> None:
    def strict(x: np.ndarray) -> np.ndarray:
        if type(x) is not np.ndarray:
            raise TypeError("an array of NumPy's own")
        return x - x.astype(np.float16)

    told: list[str] = []
    np.testing.assert_array_equal(of_numpy.make_numpy_evaluator(strict, told)({"x": X}, None, None), strict(X))
    assert not told and np.asarray is not None and np.array(1.0).dtype == np.float64  # NumPy is as it was


def test_a_given_number_has_one_nearest_and_a_computed_one_may_take_its_neighbour() -> None:
    def cast(reference: Callable[..., Any]) -> tuple[np.ndarray, list[np.ndarray], bool]:
        casts, evaluate = CastRoundings(), of_numpy.make_numpy_evaluator(reference, [])
        (first,) = evaluate({"x": X}, casts.first, None)
        draws = [evaluate({"x": X * (1 + s * 2.0**-20)}, casts.either(), None)[0] for s in (-1, 1)]
        return first, draws, casts.open

    first, draws, free = cast(lambda x: x[::-1].T.astype(np.float16))
    assert not free and all(np.array_equal(first, y) for y in draws)
    first, draws, free = cast(lambda x: (x * 0.7).astype(np.float16))
    moved = np.mean([first != y for y in draws])
    assert free and 0 < moved < 0.1
    whole, draws, free = cast(lambda x: (x * 0.7).astype(np.int32))
    assert free and set(np.unique(np.abs(np.stack(draws) - whole))) <= {0, 1}


def by_hand(x: np.ndarray) -> np.ndarray:
    """Cut off to bfloat16."""
    bits = x.astype(np.float32).view(np.uint32)
    return np.where(np.isnan(x), bits, bits & np.uint32(0xFFFF0000)).view(np.float32).astype(x.dtype)


@pytest.mark.parametrize(
    "to", [by_hand, lambda x: round_to_dtype(x, "bfloat16"), lambda x: x.astype(ml_dtypes.bfloat16)]
)
def test_what_is_rounded_by_its_bits_is_rounded_as_by_a_cast(to: Callable[..., Any]) -> None:
    """A draw moves inputs by less than such a rounding, which would leave no noise at all of the product of what it
    made."""
    casts, told, read = CastRoundings(), list[str](), list[np.ndarray]()
    evaluate = of_numpy.make_numpy_evaluator(lambda x, w: to(x) @ to(x - to(x)).T, told)
    (y,) = evaluate({"x": X, "w": W}, casts.first, None)
    np.testing.assert_array_equal(y, np.asarray(to(X), float) @ np.asarray(to(X - to(X)), float).T)
    assert told in (["bits"], ["bfloat16"])
    (still,) = evaluate({"x": X * (1 + 2.0**-23), "w": W}, casts.either(), None)
    assert not casts.open and np.array_equal(
        still, y
    )  # what was given, and is taken from it without an error, rounds one way
    evaluate({"x": X, "w": W}, casts.either(), lambda x: read.append(x) or x)  # type: ignore[func-returns-value]
    assert [x.shape for x in read] == [X.shape, X.shape, X.T.shape]
    (y,) = of_numpy.make_numpy_evaluator(lambda x: to(x * 0.7), [])({"x": X}, casts.first, None)
    assert casts.open


def test_an_operation_that_rounds_reads_what_its_own_rounding_may_make_of_a_cast() -> None:
    read: list[np.ndarray] = []

    def seen(x: np.ndarray) -> np.ndarray:
        read.append(x)
        return x * (1 + 2.0**-20)

    evaluate = of_numpy.make_numpy_evaluator(lambda x: np.exp(x.astype(np.float16).T[::-1] / 300), [])
    (y,) = evaluate({"x": X}, None, None)
    (moved,) = evaluate({"x": X}, None, seen)
    assert len(read) == 1 and (moved > y).all()
    of_numpy.make_numpy_evaluator(lambda x: x == x.astype(np.float16), [])({"x": X}, None, seen)
    assert len(read) == 1  # to compare rounds nothing


def test_what_a_reference_keeps_for_its_next_call_is_of_that_call() -> None:
    """A memoised table: casts of what is computed with it may take the neighbour, and a kernel that has it too gets
    NumPy's arrays."""

    @functools.lru_cache
    def table(n: int) -> np.ndarray:
        made = np.zeros(n, np.float32)
        made[:] = 1 / 3
        return made

    def reference(x: np.ndarray) -> Any:
        return (table(x.shape[-1]) * x).astype(np.float16)

    f = of_numpy.make_numpy_evaluator(reference, [])
    f({"x": X}, None, None)
    (found,) = f({"x": X}, lambda x, dtype, exact, node: x + 1e6, None)
    assert found.min() > 1e6
    left = table(X.shape[-1]) * np.ones(48, np.float32)
    assert type(left) is np.ndarray and left.dtype == np.float32


def test_another_thread_has_numpy_as_it_is() -> None:
    seen: list[type] = []

    def reference(x: np.ndarray) -> np.ndarray:
        other = threading.Thread(target=lambda: seen.append(type(np.zeros(3, np.float16))))
        other.start()
        other.join()
        return x - x.astype(np.float16)

    told: list[str] = []
    of_numpy.make_numpy_evaluator(reference, told)({"x": X}, None, None)
    assert told == ["float16"] and seen == [np.ndarray]


def test_a_module_that_a_reference_imports_keeps_numpy_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes NumPy's functions where the reference runs, and has them for good."""
    (tmp_path / "imported_inside.py").write_text("from numpy import zeros\ndef made(): return zeros(3, 'float32')\n")
    monkeypatch.syspath_prepend(tmp_path)

    def reference(x: np.ndarray) -> Any:
        return x.astype(np.float16) + importlib.import_module("imported_inside").made()[0]

    of_numpy.make_numpy_evaluator(reference, [])({"x": X}, None, None)
    made = importlib.import_module("imported_inside").made()
    assert type(made) is np.ndarray and made.nbytes == 12


def log_softmax(x: np.ndarray) -> np.ndarray:
    some = x - x.max(-1, keepdims=True)
    return some - np.log(np.exp(some).sum(-1, keepdims=True))


def log_softmax_in_two_texts(x: np.ndarray) -> np.ndarray:
    top = x.max(-1, keepdims=True)
    return x - top - np.log(np.exp(x - top).sum(-1, keepdims=True))


def test_float64s_own_rounding_is_seen_wherever_two_results_matter_alike() -> None:
    """exp(0) and the sum are both 1: where they move apart by the same ulp, log(sum) stands still."""
    x = np.concatenate([np.zeros((500, 1)), np.linspace(-36.0, -33.0, 500)[:, np.newaxis]], -1)
    for reference in (log_softmax, log_softmax_in_two_texts):
        y = reference(x)
        many = [
            of_numpy.shake_numpy_reference(reference, {"x": x}, lambda x, dtype, exact, node: x, draw)
            for draw in range(noise.ROUNDOFF_DRAWS)
        ]
        apart = np.max([np.abs(made[0] - y) for made in many if made is not None], 0)
        assert (apart[:, 0] >= 2.0**-53).all() and (apart[:, 0] < 2.0**-49).all()
        assert (apart[:, 1] < 2.0**-45).all()


def test_what_torch_rounds_within_an_op_is_seen_as_well() -> None:
    torch = pytest.importorskip("torch")
    x = np.concatenate([np.zeros((500, 1)), np.linspace(-36.0, -33.0, 500)[:, np.newaxis]], -1)
    for reference in (
        lambda x: torch.log_softmax(x, -1),
        lambda x: torch.logsumexp(x, -1),
        lambda x: x - torch.logsumexp(x, -1, keepdim=True),
    ):
        y = reference(torch.from_numpy(x)).numpy()
        many = [of_torch.shake_torch_reference(reference, {"x": x}, draw) for draw in range(noise.ROUNDOFF_DRAWS)]
        apart = np.max([np.abs(made[0] - y) for made in many if made is not None], 0)
        assert (apart.reshape(500, -1)[:, 0] >= 2.0**-53).all() and apart.max() < 2.0**-45
    assert of_torch.shake_torch_reference(lambda x: x.half().double(), {"x": x}, 0) is None
