// From logit rows to tokens and log-probabilities: csrc/sampling.cpp computes what ops/sampling.py defines, to the
// bit. Parameters lie in arrays by slot that are bound once; nothing is allocated in a step.
#pragma once
#include <cstddef>
#include <cstdint>

namespace headrace {

// SamplingTable of ops/sampling.py.
struct SamplingSlots {
  const float *temperature, *top_p, *min_p, *repetition, *frequency, *presence;
  const int32_t *top_k, *prompt_len, *choice;
  const uint64_t* seed;
};

struct SamplingRows {
  SamplingSlots slots;
  int vocab;
  const float* logits;
  ptrdiff_t logit_stride;
  const int32_t *slot, *position, *top;
  const uint8_t* sample;
  const int32_t* history;
  ptrdiff_t history_stride;
  // What is added to which logits of row i: entries adjust_begin[i] .. adjust_begin[i+1]. Null: nothing.
  const int32_t *adjust_begin, *adjust_id;
  const float* adjust_value;
  // Which mask holds for row i (-1: none), and the masks: bit t of a mask says that token t may come. Null: none.
  const int32_t* mask_row;
  const uint32_t* masks;
  ptrdiff_t mask_stride;
  // Results by row; top_ids and top_logprobs are [rows][top_width]. logprob is null if no row asks.
  int32_t* token;
  uint8_t* failed;
  float* logprob;
  int32_t* rank;
  int32_t* top_ids;
  float* top_logprobs;
  int top_width;
};

// Each thread's working memory, of vocab + kSamplingMargin each; `counts` starts as zeros and is left as zeros.
constexpr int kSamplingMargin = 64;
struct SamplingScratch {
  float *z, *values;
  int32_t *weights, *counts;
};

}  // namespace headrace
