// Products with a matrix that stays the same from call to call.
#include <algorithm>
#include <exception>
#include <memory>

#include "program/library.h"

using namespace fourfold::program;

struct fourfold_product {
  std::unique_ptr<const Product> product;
  const Backend* backend;
};

namespace {

Tensor tensor_of(const fourfold_tensor& given) {
  return {given.data, kind_of(given.dtype), given.dim, given.sizes, given.strides};
}

}  // namespace

fourfold_product* fourfold_product_new(const fourfold_tensor* b, int64_t rows, int32_t device_type) try {
  const Backend& backend = backend_of(device_type);
  const Tensor matrix = tensor_of(*b);
  auto product = backend.product_with == nullptr ? nullptr : backend.product_with(&matrix, 1, rows);
  return product == nullptr ? nullptr : new fourfold_product{std::move(product), &backend};
} catch (const std::exception& error) {
  set_error(error.what());
  return nullptr;
}

int32_t fourfold_product_suits(const fourfold_product* product, int64_t rows) {
  return product->product->suits(rows) ? 1 : 0;
}

void fourfold_product_delete(fourfold_product* product) { delete product; }

int32_t fourfold_product_run(
    const fourfold_product* product, const fourfold_tensor* a, const fourfold_tensor* start, const fourfold_tensor* out,
    int32_t in_parallel) try {
  const Tensor factor = tensor_of(*a), result = tensor_of(*out);
  const Tensor first = start == nullptr ? Tensor() : tensor_of(*start);
  const Tensor* const given = start == nullptr ? nullptr : &first;
  if (!product->product->takes(&factor, given, result)) return 1;
  const int64_t rows = out->dim > 1 ? out->sizes[out->dim - 2] : 1;
  const int64_t parts = in_parallel != 0 ? product->product->parts(rows) : 1;
  if (parts == 1 || product->backend->together == nullptr) {
    product->product->run(&factor, given, result, 0, 1);
    return 0;
  }
  product->backend->together(parts, [&](Member& member) {
    const int64_t count = std::min(parts, member.shares());
    for (int64_t part = member.begin(); part < std::min(count, member.end()); ++part) {
      product->product->run(&factor, given, result, part, count);
    }
  });
  return 0;
} catch (const std::exception& error) {
  set_error(error.what());
  return 1;
}
