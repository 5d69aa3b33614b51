// Rows going into and out of weight matrices: activations quantized to int8, and one row of a matrix as an embedding.
#include "dot.h"
#include "kernel_functions.h"

namespace headrace::HEADRACE_ISA {

namespace {

constexpr int kRun = kActivationGroup;

HEADRACE_INLINE uint32_t bits_of(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return u;
}

// A run that is all but zero is zero; one with a NaN or an infinity becomes NaN, so that it shows in the logits.
void quantize_run(const float* x, int8_t* q, float& scale, float& scaled_sum) {
  const F32x16 a = load(x), b = load(x + kLanes);
  const float largest = reduce_max(max(abs(a), abs(b)));
  // 0 * x is NaN just where x is not finite; addition keeps it, max() may not.
  const F32x16 nothing = mul(add(mul(a, zero()), mul(b, zero())), zero());
  const bool finite = (bits_of(reduce_add(nothing)) & 0x7fffffffu) == 0;
  if (!finite || largest < 1e-30f) {
    std::memset(q, 0, kRun);
    scale = scaled_sum = finite ? 0.0f : __builtin_nanf("");
    return;
  }
  const F32x16 inverse = set1(127.0f / largest);
  const I32x16 low = round_to_int(mul(a, inverse)), high = round_to_int(mul(b, inverse));
  store_i8(q, low);
  store_i8(q + kLanes, high);
  scale = largest / 127.0f;
  // Sums of integers below 2^24 are exact in any order.
  scaled_sum = scale * reduce_add(add(to_float(low), to_float(high)));
}

HEADRACE_INLINE float half_to_float(uint16_t half) {
  alignas(64) uint16_t halves[kLanes] = {half};
  alignas(64) float lanes[kLanes];
  store(lanes, load_half(halves));
  return lanes[0];
}
HEADRACE_INLINE float scale_at(const void* scales, bool half, ptrdiff_t index) {
  return half ? half_to_float(static_cast<const uint16_t*>(scales)[index]) : static_cast<const float*>(scales)[index];
}

}  // namespace

void quantize_rows(const float* x, ptrdiff_t stride, int rows, int k, int8_t* q, float* scale, float* scaled_sum) {
  const ptrdiff_t runs = k / kRun;
  for (ptrdiff_t row = 0; row < rows; ++row)
    for (ptrdiff_t run = 0; run < runs; ++run)
      quantize_run(x + row * stride + run * kRun, q + row * k + run * kRun, scale[row * runs + run],
                   scaled_sum[row * runs + run]);
}

void embed_row(const PackedMatrix& w, int index, float scale, float* out) {
  const ptrdiff_t tile = index / kTile, lane = index % kTile, first = tile * w.k * kTile;
  if (w.scheme == Scheme::F32) {
    const float* data = static_cast<const float*>(w.data) + first + lane;
    for (int i = 0; i < w.k; ++i) out[i] = scale * data[static_cast<ptrdiff_t>(i) * kTile];
    return;
  }
  if (w.scheme == Scheme::BF16) {
    const uint16_t* data = static_cast<const uint16_t*>(w.data) + first + lane;
    for (int i = 0; i < w.k; ++i) out[i] = scale * widen_bf16(data[static_cast<ptrdiff_t>(i) * kTile]);
    return;
  }
  const ptrdiff_t groups = w.k / w.group;
  for (ptrdiff_t g = 0; g < groups; ++g) {
    const ptrdiff_t at = (tile * groups + g) * kTile + lane;
    const float group_scale = scale_at(w.scale, w.half_scales, at);
    const int begin = static_cast<int>(g) * w.group, end = begin + w.group;
    if (w.scheme == Scheme::Q8) {
      const int8_t* data = static_cast<const int8_t*>(w.data) + first + 4 * lane;
      for (int i = begin; i < end; ++i) out[i] = scale * (group_scale * data[i / 4 * 64 + i % 4]);
    } else {
      const float minimum = scale_at(w.minimum, w.half_scales, at);
      const uint8_t* data = static_cast<const uint8_t*>(w.data) + first / 2 + 4 * lane;
      for (int i = begin; i < end; ++i) {
        const int nibble = data[i / 8 * 64 + i % 4] >> (i % 8 < 4 ? 0 : 4) & 15;
        out[i] = scale * (group_scale * nibble + minimum);
      }
    }
  }
}

}  // namespace headrace::HEADRACE_ISA
