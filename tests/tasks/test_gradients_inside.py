"""A kernel that takes a gradient inside has gradients recorded, whatever it takes and however it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tasks.arrays.tree import TensorSpec, encode_tensor_spec
from tasks.backends import BackendSpec
from tasks.catalogs.user.kernel_promises import guard_kernel_promises, make_own_kernel
from tasks.catalogs.user.ops import UserOp
from tasks.model import Form

torch = pytest.importorskip("torch")


def slope(x: Any) -> Any:
    x = x.detach().requires_grad_()
    (x * x).sum().backward()
    return x.grad


def in_arrays(x: Any) -> Any:
    return slope(torch.from_numpy(x)).numpy()


def slope_of_cube(gradient: Any, x: Any) -> Any:
    x = torch.from_numpy(x).requires_grad_()
    (x**3).backward(torch.from_numpy(gradient))
    return x.grad.numpy()


def run(kernel: Callable[..., Any], framework: str, check: str = "forward", backward: Any = None) -> list[np.ndarray]:
    op = UserOp("slope", kernel, kernel, {"x": [4]}, framework=framework, gradient=["x"])
    spec = {"$": "dict", "v": [["x", encode_tensor_spec(TensorSpec(0))]]}
    arrays = [np.full(4, 3.0, np.float32), np.ones(4, np.float32)]
    more: dict[str, Any] = {} if check == "forward" else {"wrt": (0,), "cotangents": (1,)}
    call = guard_kernel_promises(op, kernel, backward)
    form = Form(
        "torch",
        "user:slope",
        "float32",
        arrays,
        call=call,
        args={"$": "tuple", "v": []},
        kwargs=spec,
        check=check,
        own=make_own_kernel(op, kernel),
        **more,
    )
    backend = BackendSpec.parse("torch-cpu").create()
    backend.start()
    return list(backend.build(form).run())


@pytest.mark.parametrize(("kernel", "framework"), [(slope, "torch"), (in_arrays, "numpy")])
def test_a_kernel_may_differentiate_inside(kernel: Callable[..., Any], framework: str) -> None:
    assert np.allclose(run(kernel, framework)[0], 6.0)


def test_so_may_its_own_backward() -> None:
    *_, found = run(in_arrays, "numpy", "backward", slope_of_cube)
    assert np.allclose(found, 27.0)
