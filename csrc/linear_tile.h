// What the linear kernels share: how one tile of a row's sums becomes outputs, and how rows are cut into blocks.
#pragma once
#include "kernels.h"
#include "simd.h"

namespace headrace::HEADRACE_ISA {

// Bytes of activations that stay in the nearer caches while the tiles of a matrix pass over them.
constexpr ptrdiff_t kRowBlockBytes = 128 * 1024;

// y[0, count) = sum + bias, or y += scale * that. y and bias already point at the tile; count is 16 but in the last.
HEADRACE_INLINE void finish_tile(F32x16 sum, const LinearOut& out, float* y, const float* bias, int count) {
  if (count >= kTile) {
    if (bias) sum = add(sum, load(bias));
    store(y, out.accumulate ? fma(set1(out.scale), sum, load(y)) : sum);
    return;
  }
  if (bias) sum = add(sum, load_part(bias, count));
  store_part(y, out.accumulate ? fma(set1(out.scale), sum, load_part(y, count)) : sum, count);
}

// body(std::integral_constant<int, R>, row) over rows [begin, end): kMost at once until kLast or fewer are left, which go
// together. kLast is at least kMost.
template <int R, class Body>
HEADRACE_INLINE void rest_of_rows(int rest, int row, const Body& body) {
  if constexpr (R > 0) {
    if (rest == R)
      body(std::integral_constant<int, R>{}, row);
    else
      rest_of_rows<R - 1>(rest, row, body);
  }
}
template <int kMost, int kLast = kMost, class Body>
HEADRACE_INLINE void for_rows(int begin, int end, const Body& body) {
  int row = begin;
  for (; end - row > kLast; row += kMost) body(std::integral_constant<int, kMost>{}, row);
  rest_of_rows<kLast>(end - row, row, body);
}

}  // namespace headrace::HEADRACE_ISA
