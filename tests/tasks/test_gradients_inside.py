"""A kernel that takes a gradient inside is called without gradients: the error says what it lacks, and no other error does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tasks.arrays.tree import TensorSpec, encode_tensor
from tasks.backends import BackendSpec
from tasks.model import Form

torch = pytest.importorskip("torch")


def slope(x: Any) -> Any:
    x = x.detach().requires_grad_()
    (x * x).sum().backward()
    return x.grad


def enabled(x: Any) -> Any:
    with torch.enable_grad():
        return slope(x)


def broken(x: Any) -> Any:
    return x @ torch.ones(7, 7)


def run(call: Any, op: str = "user:slope") -> Any:
    args = {"$": "tuple", "v": [encode_tensor(TensorSpec(0))]}
    form = Form("torch", op, "float32", [np.ones(4, np.float32)], call=call, args=args, kwargs={"$": "dict", "v": []})
    backend = BackendSpec.parse("torch-cpu").create()
    backend.start()
    return backend.build(form).run()


def test_the_error_says_what_is_missing() -> None:
    with pytest.raises(
        RuntimeError, match=r"does not require grad.* wrap what needs gradients in torch.enable_grad\(\)"
    ):
        run(slope)
    assert np.allclose(run(enabled)[0], 2.0)


@pytest.mark.parametrize(("call", "op"), [(broken, "user:broken"), (slope, "torch:slope")])
def test_other_errors_do_not(call: Any, op: str) -> None:
    with pytest.raises(RuntimeError) as raised:
        run(call, op)
    assert "enable_grad" not in str(raised.value)
