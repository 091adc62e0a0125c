#include <algorithm>

#include "map.h"

namespace fourfold::mps {
namespace {

constexpr int64_t most_threads = int64_t(1) << 30;  // of a dispatch; a thread's position has 32 bits
constexpr int operands = 1 + Elementwise::most_inputs;

// The operands' memory, out's first; absent ones are null.
struct Operands {
  Input data[operands];
};

Operands operands_of(const Elementwise& job) {
  Operands result{{Input(job.out)}};
  std::copy(job.in, job.in + job.inputs, result.data + 1);
  return result;
}

void bind(Encoder& encoder, const Elementwise& job, const Operands& at) {
  for (int k = 0; k < operands; ++k) encoder.buffer(k, at.data[k]);
  // In the formula's compute type.
  if (compute_name(job.kind) == std::string("float")) {
    const float scalars[Elementwise::most_scalars] = {
        static_cast<float>(job.scalar[0]), static_cast<float>(job.scalar[1])};
    encoder.value(operands, scalars);
  } else {
    const int64_t scalars[Elementwise::most_scalars] = {
        static_cast<int64_t>(job.scalar[0]), static_cast<int64_t>(job.scalar[1])};
    encoder.value(operands, scalars);
  }
}

// As many dispatches as needed, with at most most_threads threads each.
template <typename Job>
void dispatch(Encoder& encoder, Job job, int64_t count, int64_t per_thread) {
  for (job.first = 0; job.first < count; job.first += most_threads * per_thread) {
    const int64_t left = std::min<int64_t>(count - job.first, most_threads * per_thread);
    encoder.value(operands + 1, job);
    encoder.threads((left + per_thread - 1) / per_thread, 1, elementwise_threads);
  }
}

bool is_dense(const Elementwise& job, DenseJob& dense) {
  dense = {.first = 0, .count = job.numel, .step = {}, .inputs = job.inputs};
  if (job.axes > 1) return false;
  for (int k = 0; k <= job.inputs; ++k) {
    const int64_t stride = job.axes == 0 ? 1 : job.axis[0].stride[k];
    if (stride != 1 && (k == 0 || stride != 0)) return false;
    if (k > 0) dense.step[k - 1] = stride;
  }
  return true;
}

// Maps the axes from `outer` on, with one dispatch for each index of the axes before.
void map_slices(Encoder& encoder, const Elementwise& job, int outer, Operands at, int64_t count) {
  const Elementwise::Axis& axis = job.axis[outer];
  if (job.axes - outer > most_axes) {
    for (int64_t index = 0; index < axis.size; ++index) {
      map_slices(encoder, job, outer + 1, at, count / axis.size);
      for (int k = 0; k <= job.inputs; ++k) at.data[k] = at.data[k].behind(axis.stride[k] * job.element_size);
    }
    return;
  }
  StridedJob strided{.first = 0, .size = {}, .stride = {}, .axes = job.axes - outer, .inputs = job.inputs};
  for (int d = 0; d < strided.axes; ++d) {
    strided.size[d] = job.axis[outer + d].size;
    std::copy(job.axis[outer + d].stride, job.axis[outer + d].stride + job.inputs + 1, strided.stride[d]);
  }
  bind(encoder, job, at);
  dispatch(encoder, strided, count, 1);
}

}  // namespace

void map(const char* label, const Elementwise& job, const Formula& formula, const char* call) {
  const std::string type = type_name(job.kind);
  const std::string computes_in = compute_name(job.kind);
  if (job.numel == 0) return;
  const std::string formula_type = formula.name + (formula.of_type ? "<" + computes_in + ">" : std::string());
  const std::string arguments = "<" + type + ", " + computes_in + ", " + formula_type + ", " +
                                std::to_string(formula.scalars) + ", " + call;
  encode(label, [&](Encoder& encoder) {
    DenseJob dense;
    if (is_dense(job, dense)) {
      encoder.use(formula.source, "dense_elementwise" + arguments + ">");
      bind(encoder, job, operands_of(job));
      dispatch(encoder, dense, job.numel, elements_per_thread);
    } else {
      const char* index = job.numel < (int64_t(1) << 31) ? "uint" : "ulong";
      encoder.use(formula.source, "strided_elementwise" + arguments + ", " + index + ">");
      map_slices(encoder, job, 0, operands_of(job), job.numel);
    }
  });
}

}  // namespace fourfold::mps
