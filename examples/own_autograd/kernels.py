"""Operations of minigrad as kernels: functions of its tensors, each with the reference that PyTorch's autograd differentiates."""

import torch
from minigrad import Tensor

import farm


class Forgetful(Tensor):
    """A planted fault: axes that broadcasting added are summed, axes of length 1 that it stretched are not."""

    @staticmethod
    def unbroadcast(gradient, shape):
        gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
        return gradient[tuple(slice(0, n) for n in shape)]


BROADCAST = {
    "inputs": {"a": ["rows", "columns"], "b": ["one", "columns"]},
    "dims": {"rows": [1, 4], "one": [1], "columns": [1, 3, 4]},
}


def product(a, b):
    return a * b


SETTINGS = {"framework": "numpy", "reference_framework": "torch", "dtypes": ["float64"]}


@farm.op(reference=product, gradient=["a", "b"], **BROADCAST, **SETTINGS)
@farm.autograd(Tensor)
def mul(a, b):
    return a * b


@farm.op(reference=product, gradient=["a", "b"], **BROADCAST, **SETTINGS)
@farm.autograd(Forgetful)
def forgetful_mul(a, b):
    return a * b


@farm.op(
    reference=lambda x: torch.softmax(x, -1),
    inputs={"x": ["rows", "columns"]},
    dims={"rows": [1, 3], "columns": [1, 4, 31]},
    op_class="normalisation",
    gradient=["x"],
    **SETTINGS,
)
@farm.autograd(Tensor)
def softmax(x):
    return x.softmax()
