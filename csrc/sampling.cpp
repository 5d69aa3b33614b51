// One logit row sampled or scored, as ops/sampling.py defines it.
#include "sampling.h"

#include "kernel_functions.h"
#include "sampling_scan.h"

namespace headrace::HEADRACE_ISA {

namespace {

constexpr float kGreedyBelow = 1e-5f;
constexpr float kMinLogprob = -9999.0f;

float log_of(float x) {
  float lanes[kLanes];
  store(lanes, noise::log(set1(x)));
  return lanes[0];
}

// Penalties on z from the known tokens of the row's sequence. counts is zero before and after.
void penalize(const SamplingRows& rows, int row, float* z, int32_t* counts) {
  const int slot = rows.slot[row], end = rows.position[row];
  const float repetition = rows.slots.repetition[slot];
  const float frequency = rows.slots.frequency[slot], presence = rows.slots.presence[slot];
  const int32_t* known = rows.history + slot * rows.history_stride;
  if (repetition != 1.0f) {
    for (int i = 0; i < end; ++i) {
      const int32_t token = known[i];
      if (counts[token]++ == 0) z[token] = z[token] > 0.0f ? z[token] / repetition : z[token] * repetition;
    }
    for (int i = 0; i < end; ++i) counts[known[i]] = 0;
  }
  if (frequency != 0.0f || presence != 0.0f) {
    for (int i = rows.slots.prompt_len[slot]; i < end; ++i) ++counts[known[i]];
    for (int i = rows.slots.prompt_len[slot]; i < end; ++i) {
      const int32_t token = known[i];
      if (counts[token] == 0) continue;
      z[token] = z[token] - frequency * static_cast<float>(counts[token]) - presence;
      counts[token] = 0;
    }
  }
}

// The row's mask, or null if all tokens may come.
const uint32_t* mask_of(const SamplingRows& rows, int row) {
  if (!rows.mask_row || rows.mask_row[row] < 0) return nullptr;
  return rows.masks + rows.mask_row[row] * rows.mask_stride;
}

// z becomes -inf where the mask bars a token.
void apply_mask(const uint32_t* mask, int n, float* z) {
  for (int begin = 0; begin < n; begin += 32) {
    uint32_t barred = ~mask[begin / 32];
    if (n - begin < 32) barred &= (1u << (n - begin)) - 1;
    if (barred == ~0u) {
      for (int i = 0; i < 32; i += kLanes) store(z + begin + i, set1(kMinusInfinity));
      continue;
    }
    for (; barred; barred &= barred - 1) z[begin + __builtin_ctz(barred)] = kMinusInfinity;
  }
}

// The likeliest token that the mask lets through, ties to the lowest; `otherwise` if it bars every one.
int likeliest_of(const uint32_t* mask, const float* x, int n, int otherwise) {
  int best = -1;
  for (int i = 0; i < n; ++i)
    if ((mask[i / 32] >> (i % 32) & 1) && (best < 0 || x[i] > x[best])) best = i;
  return best < 0 ? otherwise : best;
}

// A bound on e^x from above, within 7 %: between powers of two the chord lies above the curve.
HEADRACE_INLINE F32x16 exp_bound(F32x16 x) {
  constexpr float kStep = 12102203.2f, kOne = 1065353216.0f;  // 2^23 / ln 2; the bits of 1
  return from_bits(truncate(add(mul(max(x, set1(-80.0f)), set1(kStep)), set1(kOne))));
}

// The token with the largest z + noise among z >= cut. z is padded with -inf; `likeliest` has z = 0.
int gumbel_max(const float* z, int n, float cut, const noise::Stream& stream, int likeliest) {
  float best = -4.0f;  // less than the likeliest token's least noise
  int token = likeliest;
  const auto visit = [&](int first) {
    alignas(64) int32_t halves[noise::kTokens];
    noise::philox(stream, static_cast<uint32_t>(first), halves);
    for (int i = 0; i < noise::kTokens; i += kLanes) {
      const F32x16 v = load(z + first + i);
      const I32x16 half = load_i32(halves + i);
      // Noise is at most -log(1 - u): most tokens are seen to lose without their logarithms.
      const F32x16 reach = mul(exp_bound(sub(v, set1(best))), set1(1.001f));
      uint32_t mask = mask_ge(v, set1(cut)) & mask_ge(reach, noise::distance_to_one(half));
      if (!mask) continue;
      float lanes[kLanes];
      store(lanes, add(v, noise::gumbel(half)));
      for (; mask; mask &= mask - 1) {
        const int lane = __builtin_ctz(mask), id = first + i + lane;
        if (lanes[lane] > best || (lanes[lane] == best && id < token)) {
          best = lanes[lane];
          token = id;
        }
      }
    }
  };
  visit(likeliest / noise::kTokens * noise::kTokens);
  for (int first = 0; first < n; first += noise::kTokens) {
    // What lies further below the best than any noise reaches cannot win.
    const F32x16 least = set1(std::max(cut, best - noise::kLargest));
    if (mask_ge(load(z + first), least) | mask_ge(load(z + first + kLanes), least)) visit(first);
  }
  return token;
}

int sample(const SamplingRows& rows, int row, const float* logits, Largest largest, const SamplingScratch& scratch) {
  const SamplingSlots& slots = rows.slots;
  const int slot = rows.slot[row], n = rows.vocab;
  const int first = rows.adjust_begin ? rows.adjust_begin[row] : 0;
  const int last = rows.adjust_begin ? rows.adjust_begin[row + 1] : 0;
  const uint32_t* mask = mask_of(rows, row);
  float* z = scratch.z;
  const float* x = logits;
  if (first < last || mask || slots.repetition[slot] != 1.0f || slots.frequency[slot] != 0.0f || slots.presence[slot] != 0.0f) {
    std::memcpy(z, logits, sizeof(float) * n);
    for (int i = first; i < last; ++i) z[rows.adjust_id[i]] += rows.adjust_value[i];
    if (mask) apply_mask(mask, n, z);
    penalize(rows, row, z, scratch.counts);
    x = z;
    const Largest adjusted = find_largest(z, n);
    if (adjusted.value == kMinusInfinity) return mask ? likeliest_of(mask, logits, n, largest.index) : largest.index;
    largest = adjusted;
  }
  const float temperature = slots.temperature[slot];
  if (temperature < kGreedyBelow || largest.value == -kMinusInfinity) return largest.index;

  const F32x16 shift = set1(largest.value), divisor = set1(temperature);
  for (int i = 0; i < n; i += kLanes) store(z + i, div(sub(load_or_infinity(x + i, n - i), shift), divisor));
  for (int i = (n + kLanes - 1) / kLanes * kLanes; i < n + noise::kTokens; i += kLanes) store(z + i, set1(kMinusInfinity));

  float cut = slots.min_p[slot] > 0.0f ? log_of(slots.min_p[slot]) : kMinusInfinity;
  if (slots.top_k[slot] > 0) cut = std::max(cut, top_k_cut(z, n, slots.top_k[slot], scratch.values, scratch.weights));
  if (slots.top_p[slot] < 1.0f)
    cut = std::max(cut, top_p_cut(z, n, cut, slots.top_p[slot], scratch.values, scratch.weights));
  const noise::Stream stream{slots.seed[slot], static_cast<uint32_t>(slots.choice[slot]),
                             static_cast<uint32_t>(rows.position[row])};
  return gumbel_max(z, n, cut, stream, largest.index);
}

// The `width` largest logits, falling, ties by lower id, into ids; returns how many there are.
int find_top(const float* x, int n, int width, int32_t* ids) {
  int count = 0;
  const auto insert = [&](int id) {
    int place = count < width ? count++ : width - 1;
    for (; place > 0 && x[ids[place - 1]] < x[id]; --place) ids[place] = ids[place - 1];
    ids[place] = id;
  };
  if (width == 0) return 0;
  int i = 0;
  for (; i < n && count < width; ++i) insert(i);
  for (; i < n; i += kLanes) {
    const F32x16 v = load_or_infinity(x + i, n - i);
    for (uint32_t mask = mask_gt(v, set1(x[ids[width - 1]])); mask; mask &= mask - 1) {
      const int id = i + __builtin_ctz(mask);
      if (x[id] > x[ids[width - 1]]) insert(id);
    }
  }
  return count;
}

void score(const SamplingRows& rows, int row, const float* x, float largest) {
  const int n = rows.vocab, token = rows.token[row];
  const float log_total = log_of(static_cast<float>(sum_weights(x, n, largest)) * 0x1p-30f);
  const auto logprob = [&](int id) { return std::max((x[id] - largest) - log_total, kMinLogprob); };
  rows.logprob[row] = logprob(token);
  int rank = 1;
  const F32x16 value = set1(x[token]);
  for (int i = 0; i < n; i += kLanes) rank += __builtin_popcount(mask_gt(load_or_infinity(x + i, n - i), value));
  for (int i = 0; i < token; ++i) rank += x[i] == x[token];
  rows.rank[row] = rank;
  int32_t* ids = rows.top_ids + static_cast<ptrdiff_t>(row) * rows.top_width;
  float* logprobs = rows.top_logprobs + static_cast<ptrdiff_t>(row) * rows.top_width;
  const int count = find_top(x, n, rows.top[row], ids);
  for (int i = 0; i < count; ++i) logprobs[i] = logprob(ids[i]);
}

}  // namespace

void sample_row(const SamplingRows& rows, int row, const SamplingScratch& scratch) {
  const float* x = rows.logits + row * rows.logit_stride;
  const Largest largest = find_largest(x, rows.vocab);
  if (largest.nan || !(largest.value > kMinusInfinity && largest.value < -kMinusInfinity)) {
    rows.failed[row] = 1;
    return;
  }
  rows.token[row] = rows.sample[row]
                        ? sample(rows, row, x, largest, scratch)
                        : rows.history[rows.slot[row] * rows.history_stride + rows.position[row]];
  if (rows.top[row] >= 0) score(rows, row, x, largest.value);
}

}  // namespace headrace::HEADRACE_ISA
