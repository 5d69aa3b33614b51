// Kernels over the columns of one row: norm, gated activation, softcap, rope, and the write of a token's key and
// value into its KV block.
#include "kernel_functions.h"
#include "simd.h"

namespace headrace::HEADRACE_ISA {

namespace {

HEADRACE_INLINE F32x16 load_upto(const float* p, int n) { return n >= kLanes ? load(p) : load_part(p, n); }
HEADRACE_INLINE void store_upto(float* p, F32x16 x, int n) {
  if (n >= kLanes)
    store(p, x);
  else
    store_part(p, x, n);
}

HEADRACE_INLINE F32x16 silu(F32x16 x) { return div(x, add(set1(1.0f), exp(sub(zero(), x)))); }

// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
HEADRACE_INLINE F32x16 gelu_tanh(F32x16 x) {
  F32x16 inner = mul(mul(set1(0.7978845608028654f), x), fma(mul(set1(0.044715f), x), x, set1(1.0f)));
  return mul(mul(set1(0.5f), x), add(set1(1.0f), tanh(inner)));
}

template <F32x16 (*activate)(F32x16)>
HEADRACE_INLINE void gated(const float* gate, const float* up, float* out, int width) {
  for (int i = 0; i < width; i += kLanes) {
    const int n = width - i;
    store_upto(out + i, mul(activate(load_upto(gate + i, n)), load_upto(up + i, n)), n);
  }
}

}  // namespace

void rms_norm(const float* x, float* y, const float* weight, int width, float eps) {
  F32x16 sum = zero();
  for (int i = 0; i < width; i += kLanes) {
    F32x16 v = load_upto(x + i, width - i);
    sum = fma(v, v, sum);
  }
  const F32x16 scale = set1(1.0f / __builtin_sqrtf(reduce_add(sum) / static_cast<float>(width) + eps));
  for (int i = 0; i < width; i += kLanes) {
    const int n = width - i;
    store_upto(y + i, mul(mul(load_upto(x + i, n), scale), load_upto(weight + i, n)), n);
  }
}

void gated_activation(const float* gate, const float* up, float* out, int width, Activation activation) {
  if (activation == Activation::Silu)
    gated<silu>(gate, up, out, width);
  else
    gated<gelu_tanh>(gate, up, out, width);
}

void softcap(float* x, int width, float cap) {
  const F32x16 c = set1(cap);
  for (int i = 0; i < width; i += kLanes) {
    const int n = width - i;
    store_upto(x + i, mul(c, tanh(div(load_upto(x + i, n), c))), n);
  }
}

void add_scaled(const float* x, float* y, int width, float scale) {
  const F32x16 s = set1(scale);
  for (int i = 0; i < width; i += kLanes) {
    const int n = width - i;
    store_upto(y + i, fma(s, load_upto(x + i, n), load_upto(y + i, n)), n);
  }
}

void rope(float* x, int heads, int head_dim, int rotary_dim, const float* cos_sin, bool interleaved) {
  const int half = rotary_dim / 2;
  const int first = interleaved ? 1 : half;     // distance between the two of a pair
  const int stride = interleaved ? 2 : 1;
  for (int head = 0; head < heads; ++head, x += head_dim) {
    for (int i = 0; i < half; ++i) {
      const float c = cos_sin[2 * i], s = cos_sin[2 * i + 1];
      float* a = x + stride * i;
      const float u = a[0], v = a[first];
      a[0] = u * c - v * s;
      a[first] = v * c + u * s;
    }
  }
}

namespace {

// k goes down a column of the transposed K, v along a row of V.
void write_unit(const KVView& kv, uint8_t* unit, int slot, const float* k, const float* v) {
  const int size = kv.block_size;
  if (kv.type == KVType::F32) {
    float* keys = reinterpret_cast<float*>(unit) + slot;
    for (int d = 0; d < kv.k_dim; ++d) keys[d * size] = k[d];
    std::memcpy(reinterpret_cast<float*>(unit + kv.v_offset) + slot * kv.v_dim, v, sizeof(float) * kv.v_dim);
    return;
  }
  if (kv.type == KVType::BF16) {
    uint16_t* keys = reinterpret_cast<uint16_t*>(unit) + slot;
    uint16_t* values = reinterpret_cast<uint16_t*>(unit + kv.v_offset) + slot * kv.v_dim;
    for (int d = 0; d < kv.k_dim; ++d) keys[d * size] = narrow_bf16(k[d]);
    for (int d = 0; d < kv.v_dim; ++d) values[d] = narrow_bf16(v[d]);
    return;
  }
  alignas(64) int8_t q[kLanes];
  const auto scale_of = [](const float* x, int n) {
    F32x16 largest = zero();
    for (int i = 0; i < n; i += kLanes) largest = max(largest, abs(load_upto(x + i, n - i)));
    const float most = reduce_max(largest);
    return most < 1e-30f ? 0.0f : most / 127.0f;  // the inverse of a smaller scale would be infinite
  };
  const auto quantize = [&](const float* x, int n, float scale, int8_t* out, int stride) {
    const F32x16 inverse = set1(scale > 0.0f ? 1.0f / scale : 0.0f);
    for (int i = 0; i < n; i += kLanes) {
      store_i8(q, round_to_int(mul(load_upto(x + i, n - i), inverse)));
      for (int j = 0; j < min_int(kLanes, n - i); ++j) out[(i + j) * stride] = q[j];
    }
  };
  const float k_scale = scale_of(k, kv.k_dim), v_scale = scale_of(v, kv.v_dim);
  reinterpret_cast<float*>(unit + kv.k_scale_offset)[slot] = k_scale;
  reinterpret_cast<float*>(unit + kv.v_scale_offset)[slot] = v_scale;
  quantize(k, kv.k_dim, k_scale, reinterpret_cast<int8_t*>(unit) + slot, size);
  quantize(v, kv.v_dim, v_scale, reinterpret_cast<int8_t*>(unit + kv.v_offset) + slot * kv.v_dim, 1);
}

}  // namespace

void kv_write(const KVView& kv, int kv_heads, int block, int slot, const float* k, const float* v) {
  uint8_t* unit = kv.base + block * kv.block_bytes;
  for (int head = 0; head < kv_heads; ++head, unit += kv.head_bytes)
    write_unit(kv, unit, slot, k + head * kv.k_dim, v + head * kv.v_dim);
}

}  // namespace headrace::HEADRACE_ISA
