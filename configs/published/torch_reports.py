"""Published reports of wrong results in torch, eager or compiled, as kernels: see the thread that each one names."""

import numpy as np

from tasks import op


def _int8_linear(x, weight):
    # The quantisation itself is done in float32, as the kernel does it.
    scaled = np.clip(np.rint(x.astype(np.float32) * np.float32(127)), -128, 127)
    return (scaled.reshape(-1, x.shape[-1]).astype(np.float64) @ weight.astype(np.float64)).astype(np.int32)


@op(
    name="pytorch_195066_int8_linear",
    reference=_int8_linear,
    op_class="exact",
    outputs=["int32"],
    inputs={
        "x": {"shape": [1, "tokens", 512], "low": -1, "high": 1},
        "weight": {"shape": [512, 512], "dtype": "int8", "low": -128, "high": 127},
    },
    dims={"tokens": [1, 4]},
)
def int8_linear(x, weight):
    """https://github.com/pytorch/pytorch/issues/195066: _int_mm of one row is garbage; with four rows it is right."""
    import torch

    quantised = torch.clamp(torch.round(x * 127), -128, 127).to(torch.int8)
    return torch._int_mm(quantised.reshape(-1, x.shape[-1]), weight)


@op(
    name="pytorch_175966_arange",
    reference=lambda x: np.arange(x.shape[0]) * 1_000_000_000 + x,
    op_class="exact",
    inputs={"x": ["n"]},
    dims={"n": [2, 11, 33]},
    dtypes=["int64"],
)
def arange_times(x):
    """https://github.com/pytorch/pytorch/issues/175966: the compiled step wraps in int32."""
    import torch

    return torch.arange(0, x.shape[0], dtype=torch.int64) * 1_000_000_000 + x


@op(
    name="pytorch_183763_sinh",
    reference=lambda x: np.sinh(x),
    op_class="elementary",
    inputs={"x": {"shape": ["n"], "low": 88.8, "high": 89.4}},
    dims={"n": [4, 64]},
)
def sinh(x):
    """https://github.com/pytorch/pytorch/issues/183763: the vectorised sinh overflows below its own limit of 89.4."""
    import torch

    return torch.sinh(x)


@op(
    name="pytorch_183768_acosh",
    reference=lambda x: np.arccosh(x),
    op_class="elementary",
    inputs={"x": {"shape": ["n"], "low": 1e20, "high": 1e26}},
    dims={"n": [4, 64]},
)
def acosh(x):
    """https://github.com/pytorch/pytorch/issues/183768: the compiled acosh of large finite numbers is infinite."""
    import torch

    return torch.acosh(x)


def _zeta(s, q):
    from scipy.special import zeta as exact

    return np.where(np.isposinf(q), 0.0, exact(s, q))  # the sum of (k + q)**-s vanishes term by term


@op(
    name="pytorch_187294_zeta",
    reference=_zeta,
    inputs={"s": {"shape": [2], "data": [2.0, 3.0]}, "q": {"shape": [2], "data": [5.0, float("inf")]}},
)
def zeta(s, q):
    """https://github.com/pytorch/pytorch/issues/187294: NaN for q = +Inf instead of 0."""
    import torch

    return torch.special.zeta(s, q)
