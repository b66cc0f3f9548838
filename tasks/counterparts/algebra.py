"""Rows of products, linear algebra and Fourier transforms."""

from __future__ import annotations

from tasks.counterparts.table import CounterpartRow, R

_BINARY = "x, other"

PRODUCTS: tuple[CounterpartRow, ...] = (
    R("matmul", _BINARY, "jnp.matmul", "tf.matmul(require_matrix(x), require_matrix(other))", "paddle.matmul"),
    R("mm", _BINARY, "jnp.matmul", "tf.matmul", "paddle.mm"),
    R("bmm", _BINARY, "jnp.matmul", "tf.matmul", "paddle.bmm"),
    R("__rmatmul__", _BINARY, "jnp.matmul(other, x)", "tf.matmul(require_matrix(other), require_matrix(x))", "paddle.matmul(other, x)"),
    R("mv", _BINARY, "jnp.matmul", "tf.linalg.matvec", "paddle.mv"),
    R("dot", _BINARY, "jnp.dot", "tf.tensordot(x, other, 1)", "paddle.dot"),
    R("vdot", _BINARY, "jnp.vdot"),
    R("inner", _BINARY, "jnp.inner", "", "paddle.inner"),
    R("outer", _BINARY, "jnp.outer", "", "paddle.outer"),
    R(
        "addmm addmm.decomposed",
        "x, mat1, mat2, *, beta=1, alpha=1",
        "~jnp.matmul(mat1, mat2) + x",
        "~tf.matmul(mat1, mat2) + x",
        "paddle.addmm(require_rank(x, 2), mat1, mat2, beta=beta, alpha=alpha)",
    ),
    R(
        "baddbmm",
        "x, batch1, batch2, *, beta=1, alpha=1",
        "",
        "",
        "paddle.baddbmm(require_rank(x, 3), batch1, batch2, beta=beta, alpha=alpha)",
    ),
    R(
        "einsum",
        "operands, equation",
        "jnp.einsum(require_numpy_equation(equation), *operands)",
        "tf.einsum(require_numpy_equation(equation), *operands)",
        "paddle.einsum(require_numpy_equation(equation), *operands)",
    ),
    R(
        "tensordot",
        "x, other, dims=2",
        "jnp.tensordot(x, other, require_equal_axes(x, other, dims))",
        "tf.tensordot(x, other, require_equal_axes(x, other, dims))",
        "paddle.tensordot(x, other, require_equal_axes(x, other, dims))",
    ),
    R("kron", _BINARY, "jnp.kron", "", "paddle.kron"),
    R("linalg.multi_dot", "tensors", "jnp.linalg.multi_dot", "", "paddle.linalg.multi_dot"),
    R(
        "linalg.vecdot",
        "x, other, *, dim=-1",
        "jnp.linalg.vecdot(x, other, axis=dim)",
        "",
        "paddle.linalg.vecdot(x, other, axis=dim)",
    ),
    R(
        "cross linalg.cross",
        "x, other, *, dim=-1",
        "jnp.linalg.cross(x, other, axis=dim)",
        "",
        "paddle.cross(x, require_shape_of(other, x), dim)",
    ),
    R("cdist", "x, other, p=2.0, compute_mode=None", "", "", "paddle.cdist(x, other, p)"),
    R("nn.functional.pdist", "x, p=2.0", "", "", "F.pdist(x, p)"),
    R(
        "nn.functional.linear",
        "x, weight, bias=None",
        "~affine(jnp.matmul(x, weight.T), bias)",
        "~affine(tf.matmul(require_matrix(x), weight, transpose_b=True), bias)",
        "F.linear(x, weight.T, bias)",
    ),
    R(
        "nn.functional.bilinear",
        "x, other, weight, bias=None",
        "",
        "",
        "F.bilinear(require_rank(x, 2), other, weight, bias if bias is None else bias.reshape([1, -1]))",
    ),
)

DECOMPOSITIONS: tuple[CounterpartRow, ...] = (
    R(
        "linalg.cholesky",
        "x, *, upper=False",
        "jnp.linalg.cholesky(x, upper=upper)",
        "tf.linalg.cholesky(x)",
        "paddle.linalg.cholesky(x, upper)",
    ),
    R(
        "cholesky",
        "x, upper=False",
        "jnp.linalg.cholesky(x, upper=upper)",
        "tf.linalg.cholesky(x)",
        "paddle.linalg.cholesky(x, upper)",
    ),
    R(
        "cholesky_solve",
        "b, factor, upper=False",
        "jsp.linalg.cho_solve((factor, not upper), b)",
        "tf.linalg.cholesky_solve(factor, b)",
        "paddle.linalg.cholesky_solve(b, factor, upper)",
    ),
    R("cholesky_inverse", "x, upper=False", "", "", "paddle.linalg.cholesky_inverse(require_real(require_rank(x, 2)), upper)"),
    R("linalg.cond", "x, p=None", "jnp.linalg.cond", "", "paddle.linalg.cond"),
    R("linalg.det", "x", "jnp.linalg.det", "tf.linalg.det", "paddle.linalg.det"),
    R("linalg.slogdet", "x", "jnp.linalg.slogdet", "tf.linalg.slogdet(require_real(x))"),
    R("linalg.inv", "x", "jnp.linalg.inv", "tf.linalg.inv", "paddle.linalg.inv"),
    R("linalg.eig", "x", "jnp.linalg.eig", "tf.linalg.eig", "paddle.linalg.eig"),
    R("linalg.eigvals", "x", "jnp.linalg.eigvals", "tf.linalg.eigvals", "paddle.linalg.eigvals"),
    R(
        "linalg.eigh",
        "x, UPLO='L'",
        "jnp.linalg.eigh(x, UPLO, symmetrize_input=False)",
        "tf.linalg.eigh(require_real(x))",
        "paddle.linalg.eigh(x, UPLO)",
    ),
    R(
        "linalg.eigvalsh",
        "x, UPLO='L'",
        "jnp.linalg.eigvalsh(x, UPLO, symmetrize_input=False)",
        "tf.linalg.eigvalsh(require_real(x))",
        "paddle.linalg.eigvalsh(x, UPLO)",
    ),
    R(
        "linalg.qr",
        "x, mode='reduced'",
        "jnp.linalg.qr(x, named(mode, 'reduced', 'complete'))",
        "tf.linalg.qr(x)",
        "paddle.linalg.qr(x, named(mode, 'reduced', 'complete'))",
    ),
    R(
        "linalg.svd",
        "x, full_matrices=True",
        "jnp.linalg.svd(x, full_matrices)",
        "svd(x, full_matrices)",
        "paddle.linalg.svd(x, full_matrices)",
    ),
    R("linalg.svdvals", "x", "jnp.linalg.svdvals", "tf.linalg.svd(x, compute_uv=False)", "paddle.linalg.svdvals"),
    R(
        "linalg.pinv",
        "x, *, atol=None, rtol=None, hermitian=False",
        "jnp.linalg.pinv(x, rtol=rtol)",
        "tf.linalg.pinv(x, rtol)",
    ),
    R(
        "linalg.solve",
        "x, other, *, left=True",
        "jnp.linalg.solve(x, require_rank_of_matrix(other, x))",
        "tf.linalg.solve(x, require_rank_of_matrix(other, x))",
        "paddle.linalg.solve(x, require_rank_of_matrix(other, x))",
    ),
    R(
        "linalg.solve_triangular",
        "x, other, *, upper, left=True, unitriangular=False",
        "jsp.linalg.solve_triangular(x, require_rank_of_matrix(other, x), lower=not upper, unit_diagonal=unitriangular)",
        "tf.linalg.triangular_solve(x, require_rank_of_matrix(other, x), lower=not upper)",
        "paddle.linalg.triangular_solve(x, require_rank_of_matrix(other, x), upper=upper, unitriangular=unitriangular)",
    ),
    R("linalg.tensorinv", "x, ind=2", "jnp.linalg.tensorinv(x, ind)"),
    R("linalg.tensorsolve", "x, other, dims=None", "jnp.linalg.tensorsolve(x, other)"),
    R("linalg.matrix_power", "x, n", "jnp.linalg.matrix_power", "", "paddle.linalg.matrix_power"),
    R("matrix_exp", "x", "jsp.linalg.expm", "tf.linalg.expm", "paddle.linalg.matrix_exp"),
    R(
        "linalg.householder_product",
        "x, tau",
        "lax.linalg.householder_product",
        "",
        "paddle.linalg.householder_product",
    ),
    R(
        "linalg.vander",
        "x, *, N=None",
        "jnp.vander(require_vector(x), N, increasing=True)",
        "",
        "paddle.vander(require_vector(x), N, increasing=True)",
    ),
)


def _make_fourier_row(name: str, tensorflow: str = "") -> CounterpartRow:
    return R(
        f"fft.{name}",
        "x, n=None, dim=-1, norm=None",
        f"jnp.fft.{name}(x, n, dim, norm)",
        tensorflow,
        f"paddle.fft.{name}(x, n, dim, norm or 'backward')",
    )


def _make_fourier_row_of_axes(name: str, dims: str, jax: bool = True, tensorflow: str = "") -> CounterpartRow:
    over = "pair(dim)" if name.endswith("2") else "several_axes(dim)"
    return R(
        f"fft.{name}",
        f"x, s=None, dim={dims}, norm=None",
        f"jnp.fft.{name}(x, s, {over}, norm)" * jax,
        tensorflow,
        f"paddle.fft.{name}(x, s, {over}, norm or 'backward')",
    )


FOURIER: tuple[CounterpartRow, ...] = (
    _make_fourier_row("fft", "tf.signal.fft(as_complex(x))"),
    _make_fourier_row("ifft", "tf.signal.ifft(as_complex(x))"),
    _make_fourier_row("rfft", "tf.signal.rfft(x)"),
    _make_fourier_row("irfft", "tf.signal.irfft(as_complex(x))"),
    _make_fourier_row("hfft"),
    _make_fourier_row("ihfft"),
    *(_make_fourier_row_of_axes(name, "(-2, -1)") for name in ("fft2", "ifft2", "rfft2", "irfft2")),
    *(_make_fourier_row_of_axes(name, "None") for name in ("fftn", "ifftn", "rfftn", "irfftn")),
    *(_make_fourier_row_of_axes(name, "(-2, -1)", jax=False) for name in ("hfft2", "ihfft2")),
    *(_make_fourier_row_of_axes(name, "None", jax=False) for name in ("hfftn", "ihfftn")),
    R("fft.fftshift", "x, dim=None", "jnp.fft.fftshift", "tf.signal.fftshift", "paddle.fft.fftshift"),
    R("fft.ifftshift", "x, dim=None", "jnp.fft.ifftshift", "tf.signal.ifftshift", "paddle.fft.ifftshift"),
)

ROWS: tuple[CounterpartRow, ...] = (*PRODUCTS, *DECOMPOSITIONS, *FOURIER)
