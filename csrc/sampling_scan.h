// Passes over one row of logits that sampling.cpp is made of: the largest value, sums of probabilities as integers,
// values above a cut, and the cuts of top_k and top_p.
#pragma once
#include <algorithm>

#include "noise.h"

namespace headrace::HEADRACE_ISA {

constexpr float kMinusInfinity = -__builtin_inff();

HEADRACE_INLINE F32x16 load_or_infinity(const float* p, int left) {
  return left >= kLanes ? load(p) : keep_lanes(load_part(p, left), 0, left, set1(kMinusInfinity));
}

struct Largest {
  float value;
  int index;  // the lowest that has it
  bool nan;
};

inline Largest find_largest(const float* x, int n) {
  constexpr int kBlock = 512;
  const I32x16 magnitude = set1_int(0x7fffffff);
  I32x16 bits = set1_int(0);
  Largest found{kMinusInfinity, 0, false};
  int in_block = 0;
  for (int begin = 0; begin < n; begin += kBlock) {
    const int end = min_int(begin + kBlock, n);
    F32x16 largest = set1(kMinusInfinity);
    for (int i = begin; i < end; i += kLanes) {
      const F32x16 v = load_or_infinity(x + i, end - i);
      bits = max_int(bits, bit_and(bits_of(v), magnitude));
      largest = max(v, largest);
    }
    const float value = reduce_max(largest);
    if (value > found.value) {
      found.value = value;
      in_block = begin;
    }
  }
  int32_t lanes[kLanes];
  store_i32(lanes, bits);
  for (int32_t lane : lanes) found.nan |= lane > 0x7f800000;
  while (!found.nan && x[in_block] != found.value) ++in_block;
  found.index = in_block;
  return found;
}

// exp(z) for z <= 0 in units of 2^-30, so that sums are exact and do not depend on their order.
HEADRACE_INLINE I32x16 weight(F32x16 z) { return truncate(add(mul(noise::exp(z), set1(0x1p30f)), set1(0.5f))); }

// Adds up lanes of at most 2^30 in halves of 15 bits.
class WeightSum {
 public:
  HEADRACE_INLINE void operator+=(I32x16 w) {
    low_ = add(low_, bit_and(w, set1_int(0x7fff)));
    high_ = add(high_, shift_right<15>(w));
    if (++added_ == 1 << 15) flush();
  }
  int64_t total() {
    flush();
    return total_;
  }

 private:
  void flush() {
    int32_t low[kLanes], high[kLanes];
    store_i32(low, low_);
    store_i32(high, high_);
    for (int i = 0; i < kLanes; ++i) total_ += low[i] + (static_cast<int64_t>(high[i]) << 15);
    low_ = high_ = set1_int(0);
    added_ = 0;
  }
  I32x16 low_ = set1_int(0), high_ = set1_int(0);
  int added_ = 0;
  int64_t total_ = 0;
};

// Sum of the weights of (x - largest).
inline int64_t sum_weights(const float* x, int n, float largest) {
  WeightSum sum;
  const F32x16 shift = set1(largest);
  for (int i = 0; i < n; i += kLanes) sum += weight(sub(load_or_infinity(x + i, n - i), shift));
  return sum.total();
}

// Copies the z[i] >= cut, z padded with -inf to a multiple of 16; returns how many.
inline int collect(const float* z, int n, float cut, float* out) {
  int count = 0;
  const F32x16 least = set1(cut);
  for (int i = 0; i < n; i += kLanes) {
    uint32_t mask = mask_ge(load(z + i), least);
    if (n - i < kLanes) mask &= (1u << (n - i)) - 1;
    for (; mask; mask &= mask - 1) out[count++] = z[i + __builtin_ctz(mask)];
  }
  return count;
}

// How far below the largest value the likely tokens are looked for first; wider if that was not enough.
constexpr float kReach[] = {-8.0f, -20.0f, kMinusInfinity};

// The cut that keeps a value of [0, count) while the weight of all larger ones is below `target`: found bit by bit,
// as values <= 0 are ordered by the bits of their magnitudes. values and weights have room for 16 more.
inline float weighted_cut(float* values, int32_t* weights, int count, double target) {
  for (int i = count; i < count + kLanes; ++i) weights[i] = 0;
  const I32x16 magnitude = set1_int(0x7fffffff);
  int32_t kept = 0;  // the largest magnitude known to be kept, as bits
  for (int32_t bit = 1 << 30; bit; bit >>= 1) {
    const int32_t tried = kept | bit;
    const I32x16 limit = set1_int(tried);
    WeightSum larger;
    for (int i = 0; i < count; i += kLanes) {
      // All ones where the magnitude is below the limit.
      const I32x16 below = shift_right<31>(sub(bit_and(bits_of(load(values + i)), magnitude), limit));
      larger += bit_and(load_i32(weights + i), below);
    }
    if (static_cast<double>(larger.total()) < target) kept = tried;
  }
  float cut;
  std::memcpy(&cut, &kept, 4);
  return kept > 0x7f800000 ? kMinusInfinity : -cut;
}

// The cut that keeps the k largest of z, whose largest is 0.
inline float top_k_cut(const float* z, int n, int k, float* values, int32_t* weights) {
  for (float reach : kReach) {
    const int count = collect(z, n, reach, values);
    if (count < k && reach != kMinusInfinity) continue;
    std::fill_n(weights, count, 1);
    return weighted_cut(values, weights, count, k);
  }
  return kMinusInfinity;
}

// The cut of top_p among the z >= cut.
inline float top_p_cut(const float* z, int n, float cut, float top_p, float* values, int32_t* weights) {
  int64_t total = -1;
  for (float reach : kReach) {
    const bool all = reach <= cut;
    const int count = collect(z, n, all ? cut : reach, values);
    WeightSum sum;
    for (int i = 0; i < count; i += kLanes) {
      const I32x16 w = weight(load_or_infinity(values + i, count - i));
      store_i32(weights + i, w);
      sum += w;
    }
    const int64_t found = sum.total();
    if (all) total = found;
    if (total < 0) {
      WeightSum everything;
      const F32x16 least = set1(cut), nothing = set1(kMinusInfinity);
      for (int i = 0; i < n; i += kLanes) {
        const F32x16 v = load(z + i);
        everything += weight(where_less(v, least, nothing, v));
      }
      total = everything.total();
    }
    const double target = static_cast<double>(top_p) * static_cast<double>(total);
    if (all || static_cast<double>(found) >= target) return weighted_cut(values, weights, count, target);
  }
  return cut;
}

}  // namespace headrace::HEADRACE_ISA
