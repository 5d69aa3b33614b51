#include "program.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>

namespace headrace {

namespace {

void check_count(const char* name, int value, int most) {
  if (value < 0 || value > most)
    throw std::invalid_argument(std::string(name) + " must be from 0 to " + std::to_string(most) + ", got " +
                                std::to_string(value));
}

// slot: whose index it is, or -1. Names become strings only once one is wrong: a step checks thousands.
void check_index(const char* name, int value, int end, int slot = -1) {
  if (value < 0 || value >= end)
    throw std::invalid_argument(name + (slot < 0 ? "" : " of slot " + std::to_string(slot)) + " must be from 0 to " +
                                std::to_string(end - 1) + ", got " + std::to_string(value));
}

}  // namespace

Program::Program(const KernelTable& kernels, ThreadPool& pool, const Inputs& inputs)
    : kernels_(kernels), pool_(pool), scratch_(pool.threads()),
      shares_{TaskShares(pool.threads()), TaskShares(pool.threads())} {
  step_.inputs = inputs;
  step_.threads = pool.threads();
}

int Program::add_buffer(const Buffer& buffer) {
  buffers_.push_back(buffer);
  return static_cast<int>(buffers_.size()) - 1;
}

int Program::add_group(const Group& group) {
  groups_.push_back(group);
  step_.group_entries.emplace_back(step_.inputs.max_entries);
  step_.row_block.emplace_back(step_.inputs.max_tokens);
  step_.row_slot.emplace_back(step_.inputs.max_tokens);
  return static_cast<int>(groups_.size()) - 1;
}

void Program::add_op(std::unique_ptr<Op> op) {
  ops_.push_back(std::move(op));
  tasks_.assign(ops_.size(), 0);
  op_times_.assign(ops_.size(), 0);
}

std::vector<std::string> Program::op_names() const {
  std::vector<std::string> names;
  for (const auto& op : ops_) names.emplace_back(op->name());
  return names;
}

const AttentionPlan& Program::plan_attention(int group, const AttentionShape& shape, int v_dim) {
  for (const auto& plan : plans_)
    if (plan->serves(group, shape, v_dim)) return *plan;
  const Group& keys = groups_.at(group);
  plans_.push_back(std::make_unique<AttentionPlan>(group, shape, v_dim, keys.type));
  plans_.back()->reserve(step_.inputs.max_tokens, keys.max_blocks * keys.block_size, step_.threads);
  return *plans_.back();
}

void Program::reserve_scratch(size_t bytes) {
  for (Scratch& scratch : scratch_) scratch.reserve(bytes);
}

void Program::check(int rows, int entries, int logits) const {
  const Inputs& in = step_.inputs;
  check_count("rows", rows, in.max_tokens);
  check_count("entries", entries, in.max_entries);
  check_count("logits", logits, in.max_logits);
  for (int i = 0; i < rows; ++i) check_index("tokens", in.tokens[i], in.vocab_size);
  for (int i = 0; i < logits; ++i) check_index("logit_rows", in.logit_rows[i], rows);
  int row = 0;
  for (int e = 0; e < entries; ++e) {
    check_index("entry_slot", in.entry_slot[e], in.num_slots);
    const int count = in.entry_count[e], start = in.entry_start[e];
    if (count < 1 || count > rows - row)
      throw std::invalid_argument("entry_count must be at least 1 each and " + std::to_string(rows) +
                                  " (rows) together, got " + std::to_string(count) + " at entry " + std::to_string(e));
    if (in.entry_row[e] != row)
      throw std::invalid_argument("entry_row of entry " + std::to_string(e) + " must be " + std::to_string(row) +
                                  ", got " + std::to_string(in.entry_row[e]));
    for (const Group& group : groups_) {
      const int positions = group.max_blocks * group.block_size;
      check_index("positions", start, positions);
      check_index("positions", start + count - 1, positions);
      const int first = group.window ? (start - group.window + 1 > 0 ? start - group.window + 1 : 0) : 0;
      const int32_t* table = group.table + static_cast<ptrdiff_t>(in.entry_slot[e]) * group.max_blocks;
      for (int b = first / group.block_size; b <= (start + count - 1) / group.block_size; ++b)
        check_index("block", table[b], group.num_blocks, in.entry_slot[e]);
    }
    for (const int positions : rope_positions_) check_index("positions", start + count - 1, positions);
    for (int i = 0; i < count; ++i)
      if (in.positions[row + i] != start + i)
        throw std::invalid_argument("positions must run on from entry_start in every entry");
    row += count;
  }
  if (row != rows)
    throw std::invalid_argument("entry_count must be " + std::to_string(rows) + " (rows) together, got " +
                                std::to_string(row));
}

void Program::locate_rows() {
  const Inputs& in = step_.inputs;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    auto& entries = step_.group_entries[g];
    for (int e = 0; e < step_.entries; ++e) {
      entries[e] = {in.entry_row[e], in.entry_count[e], in.entry_start[e],
                    group.table + static_cast<ptrdiff_t>(in.entry_slot[e]) * group.max_blocks};
      for (int i = 0; i < entries[e].count; ++i) {
        const int position = entries[e].start + i, row = entries[e].row + i;
        step_.row_block[g][row] = entries[e].blocks[position / group.block_size];
        step_.row_slot[g][row] = position % group.block_size;
      }
    }
  }
}

void Program::run(int rows, int entries, int logits) {
  check(rows, entries, logits);
  step_.rows = rows;
  step_.entries = entries;
  step_.logits = logits;
  static std::atomic<uint64_t> steps{0};
  step_.number = ++steps;
  locate_rows();
  for (auto& plan : plans_) plan->prepare(step_);
  for (size_t i = 0; i < ops_.size(); ++i) tasks_[i] = ops_[i]->tasks(step_);
  for (int worker = 0; worker < pool_.threads(); ++worker) shares_[0].deal(tasks_[0], worker);
  pool_.run([this](int worker) { run_ops(worker); });
}

void Program::run_ops(int worker) {
  auto before = std::chrono::steady_clock::now();
  int turn = 0;
  for (size_t i = 0, next; i < ops_.size(); i = next, turn ^= 1) {
    // Ops of a single task need no barrier of their own: whoever comes last to the one before runs them on the way.
    next = i + 1;
    while (!profiling_ && next < ops_.size() && tasks_[next] <= 1) ++next;
    // Until all are through with this op nobody looks at the next one's shares.
    if (next < ops_.size()) shares_[turn ^ 1].deal(tasks_[next], worker);
    for (int t; (t = shares_[turn].take(worker)) >= 0;) ops_[i]->run(step_, t, worker);
    pool_.barrier([&] {
      for (size_t small = i + 1; small < next; ++small)
        if (tasks_[small] == 1) ops_[small]->run(step_, 0, worker);
    });
    if (profiling_ && worker == 0) {
      const auto now = std::chrono::steady_clock::now();
      op_times_[i] = std::chrono::duration_cast<std::chrono::nanoseconds>(now - before).count();
      before = now;
    }
  }
}

}  // namespace headrace
