#include "permitted.h"

#include <algorithm>
#include <iterator>

namespace fourfold::model {
namespace {

bool begins(std::string_view name, std::string_view with) { return name.substr(0, with.size()) == with; }

// Prefixes of names. is_permitted() rejects gradients separately.
constexpr std::string_view refused[] = {
    "from_file", "empty", "new_empty", "set", "resize", "sparse_", "nested_", "to_padded_tensor", "to_sparse", "coalesce",
    "ccol_indices", "crow_indices", "mkldnn_", "to_mkldnn", "quantize", "quantized_", "q_", "fbgemm", "cudnn_", "miopen_",
    "pin_memory", "is_pinned", "record_stream", "retain_grad", "requires_grad", "batch_norm_", "ctc_loss", "linalg_ldl_solve", "binomial", "choose_qparams",
    "lstm_mps", "get_gradients"};

// Operators whose names begin with an underscore are internal to PyTorch and seldom check their arguments. These occur
// in exported programs.
constexpr std::string_view internal[] = {
    "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_assert_async", "_assert_scalar", "_assert_tensor_metadata", "_cdist_forward",
    "_conj", "_conj_copy", "_conj_physical", "_embedding_bag", "_embedding_bag_forward_only", "_euclidean_dist", "_fft_c2c", "_fft_c2r",
    "_fft_r2c", "_functional_assert_async", "_functional_assert_scalar", "_fused_rms_norm", "_int_mm", "_is_all_true", "_is_any_true",
    "_linalg_check_errors", "_linalg_det", "_linalg_eigh", "_linalg_eigvals", "_linalg_slogdet", "_linalg_solve_ex", "_linalg_svd",
    "_local_scalar_dense", "_log_softmax", "_logcumsumexp", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training", "_neg_view", "_neg_view_copy", "_pdist_forward", "_prelu_kernel", "_reshape_copy",
    "_safe_softmax", "_scaled_mm", "_shape_as_tensor", "_softmax", "_to_copy", "_trilinear", "_unique", "_unique2", "_unsafe_index",
    "_unsafe_index_put", "_unsafe_view", "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa", "_upsample_lanczos2d_aa",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "_weight_norm_interface"};

// python/fourfold/compiler/analysis/writes.py has the same list, except for copy_.
constexpr std::string_view writing[] = {"copy_", "index_add_", "index_copy_", "index_fill_", "index_put_", "masked_scatter_",
                                        "scatter_", "scatter_add_", "scatter_reduce_"};

}  // namespace

bool is_permitted(std::string_view name) {
  if (name.find("_backward") != std::string_view::npos) return false;
  if (begins(name, "__")) return true;  // __and__ and so on
  if (begins(name, "_")) return std::find(std::begin(internal), std::end(internal), name) != std::end(internal);
  return std::none_of(std::begin(refused), std::end(refused), [name](std::string_view with) { return begins(name, with); });
}

bool may_write(std::string_view name) { return std::find(std::begin(writing), std::end(writing), name) != std::end(writing); }

}  // namespace fourfold::model
