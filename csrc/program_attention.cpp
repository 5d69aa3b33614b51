// Attention as an op. Usually a task is some rows of one entry and one KV head. When there are few such tasks and
// the contexts are long, each run of keys is a task of its own and a second op merges the runs in order; a row's
// result is the same either way.
#include <algorithm>

#include "program_ops.h"

namespace headrace {

void AttentionPlan::cut_tiles(const Step& step, int rows_per_tile) {
  const auto& entries = step.group_entries[group];
  tiles.clear();
  // The last rows reach furthest: the longest tasks come first.
  for (int e = 0; e < step.entries; ++e)
    for (int end = entries[e].count; end > 0; end -= rows_per_tile)
      tiles.push_back({e, std::max(0, end - rows_per_tile), end});
}

void AttentionPlan::reserve(int rows, int positions, int threads) {
  tiles.reserve(rows);
  if (threads == 1) return;
  // Rows are taken in pieces only where each of them is a tile, and these are few (prepare).
  const size_t in_pieces = std::min(rows, 2 * threads / kv_heads);
  pieces.reserve(in_pieces);
  key_runs.reserve(in_pieces * ((positions + kSplit - 1) / kSplit));
  partials.reserve(sizeof(float) * key_runs.capacity() * key_run_stride());
}

void AttentionPlan::prepare(const Step& step) {
  const auto& entries = step.group_entries[group];
  int longest = 0;
  for (int e = 0; e < step.entries; ++e) longest = std::max(longest, entries[e].start + entries[e].count);
  key_runs.clear();
  pieces.clear();
  // Rows that are taken together read keys and values once, but widen them in memory if they fill more than one register
  // tile: that pays for many rows of int8, never for bf16. And every thread should have some tasks.
  const bool one_tile = type == KVType::BF16 && kQueryTile % shared() == 0;
  int rows_per_tile = std::max(1, (one_tile ? kQueryTile : kAttentionQueries) / shared());
  cut_tiles(step, rows_per_tile);
  const auto are_few = [&](int each) { return static_cast<int>(tiles.size()) * kv_heads < each * step.threads; };
  while (step.threads > 1 && rows_per_tile > 1 && are_few(rows_per_tile * shared() > kQueryTile ? 4 : 2))
    cut_tiles(step, rows_per_tile /= 2);
  const int tasks = static_cast<int>(tiles.size()) * kv_heads;
  if (step.threads == 1 || longest <= kSplit || tasks >= 2 * step.threads) return;
  for (int e = 0; e < step.entries; ++e)
    for (int row = 0; row < entries[e].count; ++row) {
      const int position = entries[e].start + row, last = position / kSplit;
      const int first = window ? std::max(0, position - window + 1) / kSplit : 0;
      pieces.push_back({e, row, static_cast<int>(key_runs.size()), last - first + 1});
      for (int split = first; split <= last; ++split) key_runs.push_back({e, row, split});
    }
}

namespace {

class Attention final : public Op {
 public:
  const char* name() const override { return "attention"; }
  Attention(Program& program, int qkv, int output, const HeadShape& heads, const AttentionShape& shape,
            int quantize_width)
      : program_(program), kernels_(program.kernels()), plan_(program.plan_attention(heads.group, shape, heads.v_head_dim)),
        qkv_(program.buffer(qkv)), output_(program.buffer(output)), group_(heads.group), shape_(shape),
        kv_(program.group(heads.group).view(heads.layer)), quantize_width_(quantize_width) {
    program.reserve_scratch(attention_scratch_bytes(heads.head_dim, heads.v_head_dim));
  }

  int tasks(const Step&) const override {
    const auto& cut = plan_.key_runs;
    return static_cast<int>(cut.empty() ? plan_.tiles.size() : cut.size()) * shape_.kv_heads;
  }

  void run(const Step& step, int task, int worker) const override {
    const int head = task % shape_.kv_heads, index = task / shape_.kv_heads;
    const auto& entries = step.group_entries[group_];
    float* scratch = program_.scratch(worker);
    if (!plan_.key_runs.empty()) {
      const auto& cut = plan_.key_runs[index];
      kernels_.attention_run(kv_, shape_, entries[cut.entry], cut.row, head, cut.split, qkv_.data, qkv_.stride,
                             plan_.partial(index, head * plan_.shared()), scratch);
      return;
    }
    const auto& tile = plan_.tiles[index];
    const Entry& entry = entries[tile.entry];
    kernels_.attention(kv_, shape_, entry, tile.begin, tile.end, head, head + 1, qkv_.data, qkv_.stride, output_.data,
                       output_.stride, scratch);
    for (int row = tile.begin; row < tile.end; ++row) quantize(entry.row + row, head);
  }

  int merge_tasks() const { return static_cast<int>(plan_.pieces.size()) * shape_.kv_heads; }

  void merge(const Step& step, int task, int worker) const {
    const int kv_head = task % shape_.kv_heads;
    const auto& pieces = plan_.pieces[task / shape_.kv_heads];
    const int row = step.group_entries[group_][pieces.entry].row + pieces.row;
    for (int head = kv_head * plan_.shared(); head < (kv_head + 1) * plan_.shared(); ++head)
      kernels_.attention_merge(kv_.v_dim, plan_.partial(pieces.first, head), plan_.key_run_stride(), pieces.count,
                               output_.data + row * output_.stride + head * kv_.v_dim, program_.scratch(worker));
    quantize(row, kv_head);
  }

 private:
  // The columns of one KV head's query heads: whole runs of activations (ops/cpu.py sees to that).
  void quantize(int row, int kv_head) const {
    if (quantize_width_ == 0) return;
    const int width = plan_.shared() * kv_.v_dim;
    quantize_columns(kernels_, output_, row, quantize_width_, kv_head * width, width);
  }

  const Program& program_;
  const KernelTable& kernels_;
  const AttentionPlan& plan_;
  const Buffer qkv_, output_;
  const int group_;
  const AttentionShape shape_;
  const KVView kv_;
  const int quantize_width_;
};

class AttentionMerge final : public Op {
 public:
  const char* name() const override { return "attention_merge"; }
  explicit AttentionMerge(const Attention& attention) : attention_(attention) {}
  int tasks(const Step&) const override { return attention_.merge_tasks(); }
  void run(const Step& step, int task, int worker) const override { attention_.merge(step, task, worker); }

 private:
  const Attention& attention_;
};

}  // namespace

void add_attention(Program& program, int qkv, int output, const HeadShape& heads, const AttentionShape& shape,
                   int quantize_width) {
  auto attention = std::make_unique<Attention>(program, qkv, output, heads, shape, quantize_width);
  auto merge = std::make_unique<AttentionMerge>(*attention);
  program.add_op(std::move(attention));
  program.add_op(std::move(merge));
}

}  // namespace headrace
