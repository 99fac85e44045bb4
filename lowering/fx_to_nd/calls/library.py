"""The operators of torch that are library calls by choice: no rule is meant to exist for them.

Everything else that reaches a library call is counted as a fallback: operators of ATen, of users, of libraries outside of torch.
"""

from __future__ import annotations

BY_CHOICE = frozenset(
    "stepwell c10d _c10d_functional _c10d_functional_autograd c10d_functional symm_mem _dtensor fsdp streams profiler quantized _quantized "
    "quantization quantized_decomposed onednn mkldnn mkldnn_prepacked mkl sparse rngprims debugprims inductor inductor_prims flex_lib "
    "static_runtime debug_mode_ops export prim higher_order".split()
)
"""Namespaces of torch's operators beside ATen, and ours, all of whose operators are library calls by choice."""

_LINEAR_ALGEBRA = """
_linalg_check_errors _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex _linalg_svd cholesky
cholesky_inverse cholesky_solve geqrf linalg_cholesky_ex linalg_eig linalg_householder_product linalg_inv_ex
linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp
linalg_pinv linalg_qr linalg_solve_triangular lu_unpack ormqr triangular_solve
"""
_FOURIER = "_fft_r2c _fft_c2r _fft_c2c view_as_complex view_as_real _conj _conj_physical real imag angle complex polar"
_CONTRACTIONS = """
mm bmm addmm baddbmm addbmm addmv mv dot vdot addr
convolution convolution_backward _convolution convolution_overrideable convolution_backward_overrideable _int_mm
_scaled_mm _scaled_mm_v2 _grouped_mm _scaled_grouped_mm _sparse_semi_structured_mm _weight_int4pack_mm
_weight_int4pack_mm_for_cpu _weight_int8pack_mm _convert_weight_to_int4pack _convert_weight_to_int4pack_for_cpu
_dyn_quant_matmul_4bit _dyn_quant_pack_4bit_weight _trilinear mkldnn_rnn_layer mkldnn_rnn_layer_backward _cudnn_rnn
_cudnn_rnn_backward miopen_rnn miopen_rnn_backward _thnn_fused_lstm_cell _thnn_fused_gru_cell
"""
_ATTENTION = """
_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention
_scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention
_scaled_dot_product_cudnn_attention_backward _scaled_dot_product_fused_attention_overrideable
_scaled_dot_product_fused_attention_overrideable_backward _scaled_dot_product_attention_math_for_mps
_flash_attention_forward _flash_attention_backward _efficient_attention_forward _efficient_attention_backward
"""
# interpolation of integers, and by factors that do not fit the sizes
_RESAMPLING = """
upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa
_upsample_bicubic2d_aa upsample_linear1d_backward upsample_bilinear2d_backward upsample_trilinear3d_backward
upsample_bicubic2d_backward _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward interpolate_backward
grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward
"""
_ORDERING = """
sort topk kthvalue median nanmedian mode _unique2 unique_consecutive unique_dim unique_dim_consecutive nonzero
nonzero_static masked_select searchsorted bucketize histc histogram bincount _histogramdd_bin_edges
_histogramdd_from_bin_cts _histogramdd_from_bin_tensors segment_reduce _segment_reduce_backward repeat_interleave isin
"""
_EMBEDDING_BAGS = """
_embedding_bag _embedding_bag_backward _embedding_bag_dense_backward _embedding_bag_forward_only
_embedding_bag_per_sample_weights_backward embedding_renorm
"""
_RANDOM = """
multinomial randperm poisson binomial _sample_dirichlet _standard_gamma rrelu_with_noise
"""
# doubles that torch computes to 1e-7 (special.py); orders above those that polygamma.py knows; on GPUs what only the CPU target has
_SPECIAL = """
special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_airy_ai
special_zeta igamma igammac polygamma gcd
special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
special_chebyshev_polynomial_w special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w special_hermite_polynomial_h
special_hermite_polynomial_he special_laguerre_polynomial_l special_legendre_polynomial_p
"""
_DISTANCES = "_cdist_forward _cdist_backward _pdist_forward _pdist_backward _ctc_loss _ctc_loss_backward"
_SPARSE = """
_to_sparse to_sparse _coalesce _sparse_coo_tensor_with_dims_and_tensors _indices _values indices values _nnz
crow_indices col_indices _sparse_mm_reduce_impl sparse_dim dense_dim _to_dense to_dense
"""
_QUANTISATION = """
_fused_moving_avg_obs_fq_helper _fused_moving_avg_obs_fq_helper_functional _fake_quantize_learnable_per_tensor_affine
quantize_per_tensor dequantize int_repr
"""
_OPTIMISERS = """
_fused_adam _fused_adam_ _fused_adamw _fused_adamw_ _fused_sgd _fused_sgd_ _fused_adagrad _fused_adagrad_
_amp_update_scale _amp_update_scale_ _amp_foreach_non_finite_check_and_unscale
_amp_foreach_non_finite_check_and_unscale_
"""
_ASSERTIONS = """
_assert_async _assert_scalar _assert_tensor_metadata _functional_assert_async sym_constrain_range
sym_constrain_range_for_size _local_scalar_dense _print _make_dep_token _nested_view_from_buffer
"""
_STORAGE = "set_ resize_ resize resize_as_ _resize_output _resize_output_"

LIBRARY: dict[str, frozenset[str]] = {
    "linear algebra": frozenset(_LINEAR_ALGEBRA.split()),
    "Fourier transforms and complex numbers": frozenset(_FOURIER.split()),
    "products and convolutions": frozenset(_CONTRACTIONS.split()),
    "attention": frozenset(_ATTENTION.split()),
    "resampling": frozenset(_RESAMPLING.split()),
    "long rows, and results of a size that depends on values": frozenset(_ORDERING.split()),
    "embedding bags": frozenset(_EMBEDDING_BAGS.split()),
    "random numbers of the library": frozenset(_RANDOM.split()),
    "special functions": frozenset(_SPECIAL.split()),
    "distances": frozenset(_DISTANCES.split()),
    "sparse tensors": frozenset(_SPARSE.split()),
    "quantisation": frozenset(_QUANTISATION.split()),
    "fused optimisers": frozenset(_OPTIMISERS.split()),
    "assertions and numbers": frozenset(_ASSERTIONS.split()),
    "storage": frozenset(_STORAGE.split()),
}
"""What they have in common -> names of operator packets without their namespace."""

_ELSEWHERE = (
    "_nested", "_sparse", "sparse_", "_to_sparse", "to_sparse", "_mkldnn", "mkldnn", "to_mkldnn", "_cudnn", "cudnn",
    "miopen", "_mps", "mps_", "_lstm_mps", "lstm_mps", "quantized_", "q_", "quantize_", "_cslt", "_triton",
    "_nnpack", "_fake_quantize", "crow_", "col_", "ccol_", "row_", "_weight_int", "batch_norm_stats",
    "batch_norm_gather", "batch_norm_elemt", "batch_norm_update", "batch_norm_backward_",
)  # fmt: skip
"""How operators begin that other layouts, devices and number formats have for themselves."""

_REASONS: dict[str, str] = {name: reason for reason, names in LIBRARY.items() for name in names}


def library_reason(name: str) -> str | None:
    """Why an operator (a packet without its namespace) is a library call by choice; None when it should have a rule."""
    found = _REASONS.get(name)
    if found is None and name.startswith(_ELSEWHERE):
        return "of other layouts, devices and number formats"
    return found
