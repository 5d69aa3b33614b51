// Paged attention. The key positions are cut into runs of kSplit at fixed places; a run gives a maximum, a sum and
// an accumulator per query, and runs are merged in order. Queries (row, head) of one KV head are taken some at a
// time so that they share the loads of keys and values; each one's arithmetic is the same in any company, and
// nothing outside its own reach (later positions, positions behind its window, unwritten slots) enters it.
#include "attention_tiles.h"
#include "kernel_functions.h"

namespace headrace::HEADRACE_ISA {

namespace {

constexpr int kQueries = kAttentionQueries;
constexpr int kChunksPerSplit = kSplit / kChunk;
constexpr int kWidened = 4;  // chunks of keys widened at a time, while they stay in the nearest cache
constexpr float kInfinity = __builtin_inff();

static_assert(kQueries % kQueryTile == 0, "query tiles fill a pass");

constexpr int round_up(int x) { return (x + kLanes - 1) / kLanes * kLanes; }

// One pass: up to kQueries queries of one KV head of one entry.
struct Pass {
  const KVView& kv;
  const AttentionShape& shape;
  const Entry& entry;
  int head, first, queries;  // KV head; queries first .. first + queries - 1, numbered row by row
  int shared, padded_v;      // query heads of a KV head; v_dim rounded up to whole vectors
  float* q;                  // [tile][k_dim][kQueryTile], scaled
  float* scores;             // [queries][kScoreStride], then the weights
  float* sums;               // [queries][padded_v] of this run of keys
  float* totals;             // [queries][padded_v] of the runs merged so far
  float* widened;            // keys [kWidened][k_dim][16], or values [16][padded_v]
  float run_max[kQueries], run_sum[kQueries], total_max[kQueries], total_sum[kQueries];
  bool has_total[kQueries];

  Pass(const KVView& kv_, const AttentionShape& shape_, const Entry& entry_, int head_, int first_, int queries_,
       void* scratch)
      : kv(kv_), shape(shape_), entry(entry_), head(head_), first(first_), queries(queries_),
        shared(shape_.heads / shape_.kv_heads), padded_v(round_up(kv_.v_dim)) {
    q = static_cast<float*>(scratch);
    scores = q + kQueries * kv.k_dim;
    sums = scores + kQueries * kScoreStride;
    totals = sums + kQueries * padded_v;
    widened = totals + kQueries * padded_v;
    for (int i = 0; i < queries; ++i) has_total[i] = false;
  }

  int position(int query) const { return entry.start + (first + query) / shared; }
  int begin(int query) const { return shape.window ? max_int(0, position(query) - shape.window + 1) : 0; }
  int end(int query) const { return position(query) + 1; }
  int row(int query) const { return entry.row + (first + query) / shared; }
  int query_head(int query) const { return head * shared + (first + query) % shared; }

  const uint8_t* unit(int chunk) const {
    const int block = entry.blocks[chunk * kChunk / kv.block_size];
    return kv.base + block * kv.block_bytes + head * kv.head_bytes;
  }
  int slot(int chunk) const { return chunk * kChunk % kv.block_size; }
};

// Chunks [begin, end) that queries [i, i + n) reach inside a run of keys; empty if none.
struct Chunks {
  int begin, end;
};

Chunks chunks_of(const Pass& pass, int i, int n, int split) {
  // Positions rise with the query's number, so the first query begins and the last one ends.
  const int from = max_int(pass.begin(i), split * kSplit);
  const int to = min_int(pass.end(i + n - 1), (split + 1) * kSplit);
  return {from / kChunk, to > from ? (to + kChunk - 1) / kChunk : from / kChunk};
}

void gather_queries(Pass& pass, const float* q, ptrdiff_t q_stride) {
  const int k_dim = pass.kv.k_dim;
  for (int i = 0; i < pass.queries; ++i) {
    const float* from = q + pass.row(i) * q_stride + pass.query_head(i) * k_dim;
    float* to = pass.q + (i / kQueryTile) * kQueryTile * k_dim + i % kQueryTile;
    for (int d = 0; d < k_dim; ++d) to[d * kQueryTile] = from[d] * pass.shape.scale;
  }
}

template <KVType type>
void compute_scores(Pass& pass, int split) {
  using Item = typename Stored<type>::Item;
  const int k_dim = pass.kv.k_dim, size = pass.kv.block_size;
  const Chunks all = chunks_of(pass, 0, pass.queries, split);
  const bool widen = type != KVType::F32 && pass.queries > kQueryTile;
  const void* keys[kChunksPerSplit];
  const int step = widen ? kWidened : kChunksPerSplit;
  for (int from = all.begin; from < all.end; from += step) {
    const int to = min_int(from + step, all.end);
    for (int c = from; c < to; ++c) {
      const Item* stored = reinterpret_cast<const Item*>(pass.unit(c)) + pass.slot(c);
      keys[c - from] = stored;
      if (!widen) continue;
      float* wide = pass.widened + (c - from) * k_dim * kChunk;
      for (int d = 0; d < k_dim; ++d) store(wide + d * kChunk, Stored<type>::widen(stored + d * size));
      keys[c - from] = wide;
    }
    for (int i = 0; i < pass.queries; i += kQueryTile) {
      const int n = min_int(kQueryTile, pass.queries - i);
      const Chunks own = chunks_of(pass, i, n, split);
      const int b = max_int(from, own.begin), e = min_int(to, own.end);
      if (b >= e) continue;
      float* scores = pass.scores + i * kScoreStride + (b - split * kChunksPerSplit) * kChunk;
      const float* q = pass.q + i * k_dim;
      if (widen)
        score_queries<KVType::F32>(n, q, keys + (b - from), e - b, kChunk, k_dim, scores);
      else
        score_queries<type>(n, q, keys + (b - from), e - b, size, k_dim, scores);
    }
  }
}

// Turns the scores of one query into weights; false if it reaches nothing of this run.
bool softmax(Pass& pass, int i, int split) {
  const Chunks own = chunks_of(pass, i, 1, split);
  if (own.begin >= own.end) return false;
  const int base = split * kSplit;
  const int begin = pass.begin(i), end = pass.end(i);
  const bool int8 = pass.kv.type == KVType::I8;
  float* scores = pass.scores + i * kScoreStride;
  const F32x16 nothing = set1(-kInfinity);
  const F32x16 cap = set1(pass.shape.softcap);
  F32x16 largest = nothing;
  for (int c = own.begin; c < own.end; ++c) {
    const int t = c * kChunk;
    F32x16 s = load(scores + t - base);
    if (int8) {
      const auto* scale = reinterpret_cast<const float*>(pass.unit(c) + pass.kv.k_scale_offset);
      s = mul(s, load(scale + pass.slot(c)));
    }
    if (pass.shape.softcap != 0.0f) s = mul(cap, tanh(div(s, cap)));
    if (t < begin || t + kChunk > end) s = keep_lanes(s, begin - t, end - t, nothing);
    largest = max(largest, s);
    store(scores + t - base, s);
  }
  const float m = reduce_max(largest);
  F32x16 sum = zero();
  for (int c = own.begin; c < own.end; ++c) {
    const int t = c * kChunk;
    F32x16 w = exp(sub(load(scores + t - base), set1(m)));
    sum = add(sum, w);
    if (int8) {
      const auto* scale = reinterpret_cast<const float*>(pass.unit(c) + pass.kv.v_scale_offset);
      w = mul(w, load(scale + pass.slot(c)));
    }
    store(scores + t - base, w);
  }
  pass.run_max[i] = m;
  pass.run_sum[i] = reduce_add(sum);
  float* sums = pass.sums + i * pass.padded_v;
  for (int d = 0; d < pass.padded_v; d += kLanes) store(sums + d, zero());
  return true;
}

template <KVType type>
void add_values(Pass& pass, int split) {
  using Item = typename Stored<type>::Item;
  const int v_dim = pass.kv.v_dim, padded = pass.padded_v;
  // Whole vectors only: the tail of a last one would lie outside the unit.
  const bool widen = (type != KVType::F32 && pass.queries > kQueryTile) || padded != v_dim;
  const Chunks all = chunks_of(pass, 0, pass.queries, split);
  for (int c = all.begin; c < all.end; ++c) {
    const Item* stored = reinterpret_cast<const Item*>(pass.unit(c) + pass.kv.v_offset) + pass.slot(c) * v_dim;
    const int t0 = c * kChunk;
    if (widen) {
      const int used = min_int(kChunk, pass.end(pass.queries - 1) - t0);
      for (int t = 0; t < used; ++t)
        for (int d = 0; d < padded; d += kLanes) {
          const Item* from = stored + t * v_dim + d;
          store(pass.widened + t * padded + d, v_dim - d >= kLanes ? Stored<type>::widen(from)
                                                                   : Stored<type>::widen_part(from, v_dim - d));
        }
    }
    const auto run = [&](int i, int n) {
      const int begin = max_int(pass.begin(i) - t0, 0), end = min_int(pass.end(i) - t0, kChunk);
      if (begin >= end) return;
      const float* weights = pass.scores + i * kScoreStride + (t0 - split * kSplit);
      float* sums = pass.sums + i * padded;
      if (widen)
        value_queries<KVType::F32>(n, weights, pass.widened, padded, padded, begin, end, sums, padded);
      else
        value_queries<type>(n, weights, stored, v_dim, padded, begin, end, sums, padded);
    };
    for (int i = 0; i < pass.queries; i += kQueryTile) {
      const int n = min_int(kQueryTile, pass.queries - i), last = i + n - 1;
      const bool alike = pass.position(i) == pass.position(last) ||
                         (pass.end(i) >= t0 + kChunk && pass.begin(last) <= t0);
      if (alike)
        run(i, n);
      else
        for (int j = i; j <= last; ++j) run(j, 1);
    }
  }
}

// Query i's run, or another's partial result, joined to a total: the one place where runs meet.
HEADRACE_INLINE void merge(float* total_max, float* total_sum, float* total, float run_max, float run_sum,
                           const float* sums, int padded_v, bool first) {
  if (first) {
    *total_max = run_max;
    *total_sum = run_sum;
    for (int d = 0; d < padded_v; d += kLanes) store(total + d, load(sums + d));
    return;
  }
  const F32x16 a = set1(*total_max), b = set1(run_max), m = max(a, b);
  const F32x16 old_part = exp(sub(a, m)), new_part = exp(sub(b, m));
  alignas(64) float lanes[kLanes];
  store(lanes, m);
  *total_max = lanes[0];
  store(lanes, fma(set1(*total_sum), old_part, mul(set1(run_sum), new_part)));
  *total_sum = lanes[0];
  for (int d = 0; d < padded_v; d += kLanes)
    store(total + d, fma(load(total + d), old_part, mul(load(sums + d), new_part)));
}

HEADRACE_INLINE void finish(const float* total, float total_sum, float* out, int v_dim) {
  const F32x16 sum = set1(total_sum);
  for (int d = 0; d < v_dim; d += kLanes) {
    const F32x16 y = div(load(total + d), sum);
    if (v_dim - d >= kLanes)
      store(out + d, y);
    else
      store_part(out + d, y, v_dim - d);
  }
}

template <KVType type>
void compute_run(Pass& pass, int split, bool* reached) {
  compute_scores<type>(pass, split);
  for (int i = 0; i < pass.queries; ++i) reached[i] = softmax(pass, i, split);
  add_values<type>(pass, split);
}

void compute_run(Pass& pass, int split, bool* reached) {
  switch (pass.kv.type) {
    case KVType::F32: return compute_run<KVType::F32>(pass, split, reached);
    case KVType::BF16: return compute_run<KVType::BF16>(pass, split, reached);
    case KVType::I8: return compute_run<KVType::I8>(pass, split, reached);
  }
}

}  // namespace

void attention(const KVView& kv, const AttentionShape& shape, const Entry& entry, int row_begin, int row_end,
               int head_begin, int head_end, const float* q, ptrdiff_t q_stride, float* out, ptrdiff_t out_stride,
               void* scratch) {
  const int shared = shape.heads / shape.kv_heads;
  for (int head = head_begin; head < head_end; ++head) {
    for (int i = row_begin * shared; i < row_end * shared; i += kQueries) {
      Pass pass(kv, shape, entry, head, i, min_int(kQueries, row_end * shared - i), scratch);
      gather_queries(pass, q, q_stride);
      bool reached[kQueries];
      for (int split = pass.begin(0) / kSplit; split * kSplit < pass.end(pass.queries - 1); ++split) {
        compute_run(pass, split, reached);
        for (int j = 0; j < pass.queries; ++j) {
          if (!reached[j]) continue;
          merge(&pass.total_max[j], &pass.total_sum[j], pass.totals + j * pass.padded_v, pass.run_max[j],
                pass.run_sum[j], pass.sums + j * pass.padded_v, pass.padded_v, !pass.has_total[j]);
          pass.has_total[j] = true;
        }
      }
      for (int j = 0; j < pass.queries; ++j)
        finish(pass.totals + j * pass.padded_v, pass.total_sum[j],
               out + pass.row(j) * out_stride + pass.query_head(j) * kv.v_dim, kv.v_dim);
    }
  }
}

void attention_run(const KVView& kv, const AttentionShape& shape, const Entry& entry, int row, int head, int split,
                   const float* q, ptrdiff_t q_stride, float* partial, void* scratch) {
  const int shared = shape.heads / shape.kv_heads, width = attention_partial_width(kv.v_dim);
  for (int i = 0; i < shared; i += kQueries) {
    Pass pass(kv, shape, entry, head, row * shared + i, min_int(kQueries, shared - i), scratch);
    gather_queries(pass, q, q_stride);
    bool reached[kQueries];
    compute_run(pass, split, reached);
    for (int j = 0; j < pass.queries; ++j) {
      float* to = partial + (i + j) * width;
      for (int d = 0; d < pass.padded_v; d += kLanes) store(to + d, load(pass.sums + j * pass.padded_v + d));
      to[pass.padded_v] = pass.run_max[j];
      to[pass.padded_v + 1] = pass.run_sum[j];
    }
  }
}

void attention_merge(int v_dim, const float* partials, ptrdiff_t run_stride, int runs, float* out, void* scratch) {
  const int padded_v = round_up(v_dim);
  float* total = static_cast<float*>(scratch);
  float total_max = 0.0f, total_sum = 0.0f;
  for (int run = 0; run < runs; ++run) {
    const float* partial = partials + run * run_stride;
    merge(&total_max, &total_sum, total, partial[padded_v], partial[padded_v + 1], partial, padded_v, run == 0);
  }
  finish(total, total_sum, out, v_dim);
}

}  // namespace headrace::HEADRACE_ISA
