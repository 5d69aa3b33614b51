// What the processor does at best: the instructions that kernels live on, fed from registers and the nearest cache,
// with nothing else in the way. `headrace doctor --measure` and `headrace bench ops` hold kernels against it.
#include "dot.h"
#include "kernel_functions.h"

namespace headrace::HEADRACE_ISA {

namespace {

// Independent sums, enough to hide how long one step takes.
#if defined(HEADRACE_ISA_avx512)
constexpr int kChains = 12;
#elif defined(HEADRACE_ISA_avx2)
constexpr int kChains = 4;
#else
constexpr int kChains = 1;
#endif
constexpr int kFloatChains = 6;

alignas(64) const uint8_t kBytes[64] = {};
alignas(64) const int8_t kQuads[4 * kChains] = {};

}  // namespace

int64_t ceiling_int8(int64_t rounds) {
  Dot4 sums[kChains];
  Quad quads[kChains];
  const int8_t* values = kQuads;
  asm volatile("" : "+r"(values));  // so that each counts as another
#pragma GCC unroll 16
  for (int i = 0; i < kChains; ++i) {
    sums[i] = no_dot4();
    quads[i] = load_quad(values + 4 * i);
  }
  for (int64_t round = 0; round < rounds; ++round) {
    const uint8_t* bytes = kBytes;
    asm volatile("" : "+r"(bytes));  // so that the weights count as new
    Weights low, high;
    load_q4(bytes, low, high);
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) sums[i] = dot(dot(sums[i], low, quads[i]), high, quads[i]);
  }
  F32x16 total = zero();
  for (const Dot4& sum : sums) total = add(total, to_float(sum));
  const float used = reduce_add(total);
  asm volatile("" : : "m"(used));
  return rounds * kChains * 2 * (kTile * 4) * 2;  // multiplications and additions
}

int64_t ceiling_float(int64_t rounds) {
  F32x16 sums[kFloatChains];
#pragma GCC unroll 16
  for (int i = 0; i < kFloatChains; ++i) sums[i] = set1(static_cast<float>(i));
  float half = 0.5f;
  asm volatile("" : "+m"(half));
  const F32x16 x = set1(half);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kFloatChains; ++i) sums[i] = fma(sums[i], x, x);
  }
  F32x16 total = zero();
  for (const F32x16& sum : sums) total = add(total, sum);
  const float used = reduce_add(total);
  asm volatile("" : : "m"(used));
  return rounds * kFloatChains * kLanes * 2;
}

void ceiling_read(const float* p, ptrdiff_t count) {
  F32x16 sums[4] = {zero(), zero(), zero(), zero()};
  for (ptrdiff_t i = 0; i + 4 * kLanes <= count; i += 4 * kLanes) {
    __builtin_prefetch(p + i + 512);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sums[j] = max(load(p + i + j * kLanes), sums[j]);
  }
  const float used = reduce_max(max(max(sums[0], sums[1]), max(sums[2], sums[3])));
  asm volatile("" : : "m"(used));
}

}  // namespace headrace::HEADRACE_ISA
