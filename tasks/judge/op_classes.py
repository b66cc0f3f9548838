"""Which op is judged how, and why: one table. An op that nobody has placed is judged as composite."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tasks.model import OpClass, is_complex_dtype
from tasks.model.placement import (
    ACTIVATES,
    BITS,
    COMPOSES,
    CONTRACTS,
    DERIVED,
    EXACT_OF_REALS,
    FILLS,
    FIRST,
    LOSES,
    MOVES,
    NO_BOUND,
    NORMALISES,
    OF_THE_DTYPE,
    REDUCES,
    REMAINDER,
    ROUNDED,
    ROUNDS,
    SELECTS,
    SOLVES,
    STEPS,
    TABULATED,
    UNPLACED,
    Placement,
)


def find_op_class(
    op: str, variant: str = "", kwargs: Collection[str] | Mapping[str, Any] = (), dtype: str = ""
) -> Placement:
    """The placement of an op ("torch:nn.functional.gelu") or of one variant of it, for inputs of ``dtype``.

    ``kwargs``: the arguments of a sample that differ from their defaults, by name or place, or their names alone.
    """
    placed = _index_class_placements(op.partition(":")[0])
    found = placed.get(f"{op}.{variant}") or placed.get(op) or UNPLACED
    if found.unless:
        given = {str(name) for name in kwargs}
        if isinstance(kwargs, Mapping):
            given |= {f"{name}={value}" for name, value in kwargs.items() if isinstance(value, (str, int, float))}
        if given.intersection(found.unless):
            return Placement(found.instead, f"{found.why}; with {' or '.join(found.unless)} it is not")
    if is_complex_dtype(dtype) and found.of_complex is not None:
        return replace(found, op_class=found.of_complex)
    return found


def list_op_class_lines(catalog: str) -> Sequence[tuple[Placement, str]]:
    """The lines of a catalog, as in `TABLE`; those of ONNX's operators are in their own table."""
    if catalog != ONNX:
        return TABLE.get(catalog, ())
    from tasks.operators import table as operators

    return [(row.placement, row.name) for row in operators.TABLE.values() if row.placement is not UNPLACED]


@functools.cache
def _index_class_placements(catalog: str) -> dict[str, Placement]:
    """The placements of a catalog's ops by their names with its prefix."""
    placements: dict[str, Placement] = {}
    for placement, names in list_op_class_lines(catalog):
        for name in names.split():
            if f"{catalog}:{name}" in placements:
                raise ValueError(f"tasks.judge.op_classes: {catalog}:{name} is placed twice")
            placements[f"{catalog}:{name}"] = placement
    return placements


def _place_by_definition(definition: str, why: str) -> Placement:
    return Placement(OpClass.CHOICE, why, definition)


#: The catalog whose ops `tasks.operators.table` places.
ONNX = "onnx"
#: Per catalog: (placement, names separated by blanks). A name with a variant ("std_mean.unbiased") goes before the
#: op's.
# fmt: off
TABLE: dict[str, list[tuple[Placement, str]]] = {
    "torch": [
        (FILLS, "empty empty_like empty_permuted empty_strided new_empty new_empty_strided"),
        (Placement(OpClass.COMPOSITE, "draws numbers whose tail is too heavy for moments", "squashed moments"), "cauchy log_normal"),
        (Placement(OpClass.COMPOSITE, "factors of a projection on a basis that is drawn at random", "low rank"), "svd_lowrank"),
        (Placement(OpClass.COMPOSITE, "factors of a projection on a basis that is drawn at random", "principal components"), "pca_lowrank"),
        (MOVES, "H T __getitem__ alias_copy argwhere as_strided as_strided.partial_views as_strided_copy as_strided_scatter"
                 " atleast_1d atleast_2d atleast_3d block_diag broadcast_shapes broadcast_tensors broadcast_to cartesian_prod cat"
                 " chunk clone column_stack combinations complex constant_pad_nd contiguous diag diag_embed diagflat diagonal"
                 " diagonal_copy diagonal_scatter dsplit dstack expand expand_as expand_copy eye fft.fftshift fft.ifftshift"
                 " fill flatten flip fliplr flipud full full_like gather hsplit hstack imag index_copy index_fill index_select"
                 " item linalg.diagonal lu_unpack mH mT masked_fill masked_scatter masked_select meshgrid.list_of_tensors"
                 " meshgrid.variadic_tensors movedim narrow narrow_copy new_full new_ones new_zeros nonzero nonzero_static"
                 " nn.functional.channel_shuffle nn.functional.feature_alpha_dropout.without_train"
                 " nn.functional.max_unpool1d nn.functional.max_unpool1d.grad nn.functional.max_unpool2d"
                 " nn.functional.max_unpool2d.grad nn.functional.max_unpool3d nn.functional.max_unpool3d.grad"
                 " nn.functional.one_hot nn.functional.pad.circular nn.functional.pad.constant nn.functional.pad.reflect"
                 " nn.functional.pad.replicate nn.functional.pad.replicate_negative nn.functional.pixel_shuffle"
                 " nn.functional.pixel_unshuffle nn.functional.unfold ones ones_like permute permute_copy ravel real repeat"
                 " repeat_interleave reshape reshape_as resize_ resize_as_ resolve_conj resolve_neg roll rot90 scalar_tensor"
                 " select select_scatter slice slice_scatter split split.list_args split_with_sizes split_with_sizes_copy"
                 " squeeze squeeze.multiple squeeze_copy stack t t_copy take take_along_dim tensor_split tile to_sparse transpose"
                 " transpose_copy tril tril_indices triu triu_indices unbind unbind_copy unflatten unfold unfold_copy"
                 " unsafe_chunk unsafe_split unsqueeze unsqueeze_copy view view_as view_as_complex view_as_real view_copy"
                 " vsplit vstack where zero_ zeros zeros_like _chunk_cat _unsafe_masked_index"),
        (Placement(OpClass.EXACT, "copies rows; with max_norm it scales them first", unless=("max_norm",)), "nn.functional.embedding"),
        (Placement(OpClass.EXACT, "copies; with accumulate it adds", unless=("accumulate=True", "3=True")), "index_put put"),
        (Placement(OpClass.EXACT, "copies; with reduce it adds or multiplies", unless=("reduce",)), "scatter"),
        (SELECTS, "all allclose amax amin aminmax any bucketize clamp clamp_max clamp_min count_nonzero eq equal fmax fmin ge"
                   " gt heaviside index_reduce.amax index_reduce.amin isfinite isin isinf isnan isneginf isposinf isreal le"
                   " logical_and logical_not logical_or logical_xor lt masked.amax masked.amin masked.median max.binary"
                   " max.reduction_no_dim maximum min.binary min.reduction_no_dim minimum msort ne"
                   " nn.functional.hardshrink nn.functional.hardtanh nn.functional.relu nn.functional.relu6"
                   " nn.functional.threshold scatter_reduce.amax scatter_reduce.amin searchsorted signbit unique_consecutive"),
        (FIRST, "argmax argmin masked.argmax masked.argmin max.reduction_with_dim min.reduction_with_dim"),
        (ROUNDS, "bfloat16 bool byte cdouble ceil cfloat chalf char double float floor frac half int long round"
                  " round.decimals_0 short to trunc"),
        (BITS, "__rand__ __ror__ __rxor__ bincount bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift"
                " bitwise_xor conj conj_physical copysign frexp gcd lcm neg positive"
                " unravel_index"),
        (EXACT_OF_REALS, "abs angle sgn sign"),
        (OF_THE_DTYPE, "hash_tensor nan_to_num nextafter"),
        (REMAINDER, "fmod"),
        (TABULATED, "acos acosh asin asinh atan atan2 atanh cos cosh deg2rad div.no_rounding_mode true_divide __rdiv__ erf erfc"
                     " erfinv exp exp2 expm1 float_power hypot log log10 log1p log2 pow __rpow__ rad2deg reciprocal rsqrt sin"
                     " sinh sqrt tan tanh i0 special.i1 special.erfcx special.ndtr"),
        (DERIVED, "ldexp sigmoid nn.functional.silu special.entr special.xlog1py xlogy special.i0e special.i1e"
                   " nn.functional.softsign"),
        (ROUNDED, "__radd__ __rmul__ __rsub__ add kron mul outer rsub square sub nn.functional.leaky_relu nn.functional.prelu"
                   " nn.functional.softshrink"),
        (CONTRACTS, "__rmatmul__ addbmm addmm addmm.decomposed addmv addr baddbmm bmm bmm.triton_optimized cross dot einsum inner"
                     " linalg.cross linalg.matrix_power linalg.multi_dot linalg.vecdot matmul mm mv nn.functional.bilinear"
                     " nn.functional.conv1d nn.functional.conv2d nn.functional.conv3d nn.functional.conv_transpose1d"
                     " nn.functional.conv_transpose2d nn.functional.conv_transpose3d nn.functional.linear sparse.mm.reduce"
                     " sparse.sampled_addmm tensordot torch._scaled_mm torch._scaled_mm_v2 vdot"
                     " fft.fft fft.fft2 fft.fftn fft.hfft fft.hfft2 fft.hfftn fft.ifft fft.ifft2 fft.ifftn fft.ihfft fft.ihfft2"
                     " fft.ihfftn fft.irfft fft.irfft2 fft.irfftn fft.rfft fft.rfft2 fft.rfftn stft istft"),
        (REDUCES, "_segment_reduce.lengths _segment_reduce.offsets _unsafe_masked_index_put_accumulate cdist cov cumprod cumsum"
                   " cumulative_trapezoid dist index_add index_reduce.mean index_reduce.prod linalg.vector_norm linalg.norm"
                   " linalg.norm.subgradients_at_zero linalg.matrix_norm logcumsumexp logsumexp masked.cumprod masked.cumsum"
                   " masked.logsumexp masked.mean masked.norm masked.prod masked.std masked.sum masked.var mean nanmean nansum"
                   " nn.functional.adaptive_avg_pool1d nn.functional.adaptive_avg_pool2d nn.functional.adaptive_avg_pool3d"
                   " nn.functional.avg_pool1d nn.functional.avg_pool2d nn.functional.avg_pool3d nn.functional.embedding_bag"
                   " nn.functional.interpolate.area nn.functional.pairwise_distance nn.functional.pdist norm norm.fro norm.inf"
                   " prod scatter_add scatter_reduce.mean scatter_reduce.prod scatter_reduce.sum std std.unbiased std_mean"
                   " std_mean.unbiased sum sum_to_size trace trapezoid trapz var var.unbiased var_mean var_mean.unbiased"),
        (NORMALISES, "_batch_norm_with_update _native_batch_norm_legit _softmax_backward_data corrcoef log_softmax"
                      " log_softmax.with_dtype masked.log_softmax masked.normalize masked.softmax masked.softmin"
                      " native_batch_norm native_group_norm native_layer_norm nn.functional.batch_norm"
                      " nn.functional.batch_norm.without_cudnn nn.functional.cosine_similarity nn.functional.group_norm"
                      " nn.functional.instance_norm nn.functional.layer_norm nn.functional.local_response_norm"
                      " nn.functional.normalize nn.functional.rms_norm nn.functional.softmin nn.functional.softmin.with_dtype"
                      " renorm softmax softmax.with_dtype torch.ops.aten._safe_softmax.default"),
        (SOLVES, "cholesky cholesky_inverse cholesky_solve geqrf linalg.cholesky linalg.cholesky_ex linalg.cond linalg.det"
                  " linalg.householder_product linalg.inv linalg.inv_ex linalg.ldl_factor linalg.ldl_factor_ex linalg.ldl_solve"
                  " linalg.lu_solve linalg.pinv linalg.pinv.hermitian linalg.pinv.singular linalg.slogdet linalg.solve"
                  " linalg.solve_ex linalg.solve_triangular linalg.tensorinv linalg.tensorsolve logdet lu_solve matrix_exp"
                  " norm.nuc ormqr pinverse triangular_solve"),
        (NO_BOUND, "digamma igamma igammac lgamma logit mvlgamma.mvlgamma_p_1 mvlgamma.mvlgamma_p_3 mvlgamma.mvlgamma_p_5"
                    " logaddexp logaddexp2 masked.logaddexp polygamma.polygamma_n_0 polygamma.polygamma_n_1"
                    " polygamma.polygamma_n_2 polygamma.polygamma_n_3 polygamma.polygamma_n_4 sinc special.airy_ai"
                    " special.bessel_j0 special.bessel_j1 special.bessel_y0 special.bessel_y1"
                    " special.log_ndtr special.modified_bessel_i0 special.modified_bessel_i1"
                    " special.modified_bessel_k0 special.modified_bessel_k1 special.ndtri special.polygamma.special_polygamma_n_0"
                    " special.scaled_modified_bessel_k0 special.scaled_modified_bessel_k1"
                    " special.spherical_bessel_j0 special.zeta"),
        (replace(NO_BOUND, why="a recurrence over a degree, which is a whole number whatever its dtype", fixed=(2,)),
         "special.chebyshev_polynomial_t special.chebyshev_polynomial_u special.chebyshev_polynomial_v"
         " special.chebyshev_polynomial_w special.hermite_polynomial_h special.hermite_polynomial_he"
         " special.laguerre_polynomial_l special.legendre_polynomial_p special.shifted_chebyshev_polynomial_t"
         " special.shifted_chebyshev_polynomial_u special.shifted_chebyshev_polynomial_v"
         " special.shifted_chebyshev_polynomial_w"),
        (ACTIVATES, "nn.functional.celu nn.functional.elu nn.functional.gelu nn.functional.glu nn.functional.hardsigmoid"
                     " nn.functional.hardswish nn.functional.logsigmoid nn.functional.mish nn.functional.selu"
                     " nn.functional.silu.complex nn.functional.softplus nn.functional.tanhshrink"),
        (LOSES, "nn.functional.binary_cross_entropy nn.functional.binary_cross_entropy_with_logits"
                 " nn.functional.cosine_embedding_loss nn.functional.cross_entropy nn.functional.ctc_loss"
                 " nn.functional.gaussian_nll_loss nn.functional.hinge_embedding_loss nn.functional.huber_loss nn.functional.kl_div"
                 " nn.functional.l1_loss nn.functional.linear_cross_entropy nn.functional.linear_cross_entropy.chunked"
                 " nn.functional.linear_cross_entropy.chunked_none nn.functional.margin_ranking_loss nn.functional.mse_loss"
                 " nn.functional.multi_margin_loss nn.functional.multilabel_margin_loss nn.functional.multilabel_soft_margin_loss"
                 " nn.functional.nll_loss nn.functional.poisson_nll_loss nn.functional.smooth_l1_loss"
                 " nn.functional.soft_margin_loss nn.functional.triplet_margin_loss"
                 " nn.functional.triplet_margin_with_distance_loss"),
        (replace(COMPOSES, why="a float near 0 among larger ones: step and ends are rounded", constants=True),
         "arange linspace linspace.tensor_overload"),
        (replace(COMPOSES, why="a sum of cosines or powers with rounded coefficients, which cancel at the ends",
                 constants=True),
         "signal.windows.bartlett signal.windows.blackman signal.windows.cosine signal.windows.exponential"
         " signal.windows.gaussian signal.windows.general_cosine signal.windows.general_hamming signal.windows.hamming"
         " signal.windows.hann signal.windows.kaiser signal.windows.nuttall"),
        (replace(COMPOSES, why="counts that step where an element meets an edge; with weights or density, sums"),
         "histogram histogramdd"),
        (COMPOSES, "_upsample_bilinear2d_aa addcdiv addcmul diff gradient lerp"
                    " linalg.vander logspace logspace.tensor_overload nanquantile"
                    " native_dropout_backward max_pool2d_with_indices_backward nn.functional.interpolate.bicubic"
                    " nn.functional.interpolate.bilinear nn.functional.interpolate.linear nn.functional.interpolate.trilinear"
                    " nn.functional.multi_head_attention_forward nn.functional.scaled_dot_product_attention"
                    " nn.functional.upsample_bilinear polar quantile torch.ops.aten._efficient_attention_forward"
                    " torch.ops.aten._flash_attention_forward"),
        (Placement(OpClass.COMPOSITE, "made for CUDA only: it has no reference here"),
         "jiterator_2inputs_2outputs jiterator_4inputs_with_extra_args jiterator_binary jiterator_binary_return_by_ref"
         " jiterator_unary"),
        (STEPS, "__rmod__ div.floor_rounding div.trunc_rounding floor_divide histc isclose"
                 " linalg.matrix_rank linalg.matrix_rank.hermitian nn.functional.interpolate.nearest"
                 " nn.functional.interpolate.nearest-exact nn.functional.upsample_nearest remainder"
                 " round.decimals_neg_3"),
        (replace(COMPOSES, why="steps, and divides the rounded number again, which rounds"), "round.decimals_3"),
        (replace(COMPOSES, why="weights computed from the grid; nearest sampling steps", unless=("mode=nearest",),
                 instead=OpClass.DISCONTINUOUS), "nn.functional.grid_sample"),
        (replace(COMPOSES, why="weights computed from the grid; nearest sampling (1) steps", unless=("2=1",),
                 instead=OpClass.DISCONTINUOUS), "grid_sampler_2d grid_sampler_3d"),
        (_place_by_definition("sort", "equal elements may be sorted in any order"), "sort"),
        (_place_by_definition("argsort", "equal elements may be sorted in any order"), "argsort"),
        (_place_by_definition("topk", "which of equal elements are taken, and their order, is open"), "topk"),
        (_place_by_definition("kthvalue", "the index is that of any equal element"), "kthvalue"),
        (_place_by_definition("median", "the index is that of any equal element"), "median nanmedian"),
        (_place_by_definition("mode", "any of the values found most often, and any of its indices"), "mode"),
        (_place_by_definition("cumulative", "the index is that of any equal element before"), "cummax cummin"),
        *((_place_by_definition(f"max_pool{n}d", "the index is that of any equal element of a window"),
           f"nn.functional.max_pool{n}d nn.functional.adaptive_max_pool{n}d") for n in (1, 2, 3)),
        (_place_by_definition("unique", "without sorted the order of the values is open"), "unique"),
        (_place_by_definition("svd", "singular vectors up to a phase, and within equal singular values up to a rotation"), "linalg.svd"),
        (_place_by_definition("old_svd", "singular vectors up to a phase, and within equal singular values up to a rotation"), "svd"),
        (_place_by_definition("spectrum", "perturbed by no more than the matrix, whatever its entries (Weyl)"), "linalg.svdvals linalg.eigvalsh"),
        (_place_by_definition("eigh", "eigenvectors up to a phase, and within equal eigenvalues up to a rotation"), "linalg.eigh"),
        (_place_by_definition("eig", "eigenvectors up to a factor, eigenvalues in any order"), "linalg.eig"),
        (_place_by_definition("eigvals", "eigenvalues in any order"), "linalg.eigvals"),
        (_place_by_definition("qr", "columns of Q and rows of R up to a phase"), "linalg.qr"),
        (_place_by_definition("old_qr", "columns of Q and rows of R up to a phase"), "qr"),
        (_place_by_definition("lu", "which of nearly equal pivots is taken is open"), "linalg.lu"),
        (_place_by_definition("lu_factor", "which of nearly equal pivots is taken is open"), "lu linalg.lu_factor linalg.lu_factor_ex"),
        (_place_by_definition("lstsq", "of a matrix without full column rank many solutions are as good"), "linalg.lstsq linalg.lstsq.grad_oriented"),
    ],
    "critical": [
        (MOVES, "cat dropout embedding gather index_select interpolate_nearest transpose_contiguous where"),
        (SELECTS, "clamp max max_pool2d min relu sort topk"),
        (FIRST, "argmax"),
        (TABULATED, "div exp log pow rsqrt sqrt tanh"),
        (DERIVED, "sigmoid silu"),
        (ROUNDED, "add mul"),
        (CONTRACTS, "addmm bmm conv1d conv2d conv2d_depthwise conv2d_grouped conv_transpose2d linear matmul"),
        (REDUCES, "adaptive_avg_pool2d avg_pool2d cumsum mean scatter_add sum var"),
        (NORMALISES, "batch_norm group_norm instance_norm layer_norm log_softmax rms_norm softmax"),
        (ACTIVATES, "gelu gelu_tanh hardswish softplus swiglu"),
        (LOSES, "cross_entropy mse_loss"),
        (COMPOSES, "bert_encoder interpolate_bilinear rotary_embedding scaled_dot_product_attention scaled_dot_product_attention_causal"
                    " scaled_dot_product_attention_gqa"),
    ],
}
# fmt: on
