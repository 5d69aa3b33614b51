// A decoder as a list of ops over buffers, with every pointer bound: one call computes a step. The threads of the
// pool walk the list together; an op is cut into tasks that any of them may take (task_shares.h), and a barrier stands
// between ops, where the last thread to come does what is a single task. Which tasks there are depends on the step and
// the number of threads, what a task computes for a row never does.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "attention_plan.h"
#include "kernels.h"
#include "scratch.h"
#include "task_shares.h"
#include "thread_pool.h"

namespace headrace {

// float [rows][stride], and the int8 form of its rows where a quantized linear reads it.
struct Buffer {
  float* data;
  ptrdiff_t stride;
  bool logits;  // one row for each logit row instead of each token
  int8_t* q = nullptr;
  float* scale = nullptr;
  float* scaled_sum = nullptr;
};

// The step's arrays (ops/step.py), bound once, with their largest counts.
struct Inputs {
  const int32_t *tokens, *positions, *entry_slot, *entry_row, *entry_start, *entry_count, *logit_rows;
  int max_tokens, max_entries, max_logits, num_slots, vocab_size;
};

// One KV group: its cache and its block table int32 [num_slots][max_blocks].
struct Group {
  uint8_t* cache;
  ptrdiff_t block_bytes, head_bytes, unit_bytes, v_offset, k_scale_offset, v_scale_offset;
  int num_blocks, block_size, kv_heads, k_dim, v_dim;
  KVType type;
  const int32_t* table;
  int max_blocks;
  int window;  // what lies further behind than every row's window may have been freed; 0: nothing

  KVView view(int layer) const {
    return {cache + layer * unit_bytes, block_bytes, head_bytes, v_offset, k_scale_offset, v_scale_offset,
            block_size, k_dim, v_dim, type};
  }
};

// What is known of a step before its ops run.
struct Step {
  int rows = 0, entries = 0, logits = 0, threads = 1;
  uint64_t number = 0;  // of no other step in this process
  Inputs inputs;
  std::vector<std::vector<Entry>> group_entries;    // [group][entry]
  std::vector<std::vector<int>> row_block;          // [group][row]: the block that the row's token is stored in
  std::vector<std::vector<int>> row_slot;           // [group][row]

  int count(const Buffer& buffer) const { return buffer.logits ? logits : rows; }
};

class Op {
 public:
  virtual ~Op() = default;
  virtual const char* name() const = 0;
  virtual int tasks(const Step& step) const = 0;
  // Called by many threads at once, each task once.
  virtual void run(const Step& step, int task, int worker) const = 0;
};

class Program {
 public:
  Program(const KernelTable& kernels, ThreadPool& pool, const Inputs& inputs);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  int add_buffer(const Buffer& buffer);
  int add_group(const Group& group);
  void add_op(std::unique_ptr<Op> op);
  void add_rope_table(int positions) { rope_positions_.push_back(positions); }

  // The plan of all layers of this kind; it lives as long as the program.
  const AttentionPlan& plan_attention(int group, const AttentionShape& shape, int v_dim);
  // Room of every thread, at least this large.
  void reserve_scratch(size_t bytes);
  float* scratch(int worker) const { return scratch_[worker].data(); }

  // Compute one step. Throws std::invalid_argument before anything is computed if an index is out of range.
  void run(int rows, int entries, int logits);

  const KernelTable& kernels() const { return kernels_; }
  ThreadPool& pool() const { return pool_; }
  const Buffer& buffer(int index) const { return buffers_.at(index); }
  int num_ops() const { return static_cast<int>(ops_.size()); }
  const Group& group(int index) const { return groups_.at(index); }

  // Nanoseconds that each op took in the last step, barrier included; measured only when asked for.
  bool profiling() const { return profiling_; }
  void set_profiling(bool on) { profiling_ = on; }
  std::vector<std::string> op_names() const;
  const std::vector<int64_t>& op_times() const { return op_times_; }

 private:
  void check(int rows, int entries, int logits) const;
  void locate_rows();
  void run_ops(int worker);

  const KernelTable& kernels_;
  ThreadPool& pool_;
  std::vector<Buffer> buffers_;
  std::vector<Group> groups_;
  std::vector<std::unique_ptr<Op>> ops_;
  std::vector<std::unique_ptr<AttentionPlan>> plans_;
  std::vector<Scratch> scratch_;  // one for each thread
  std::vector<int> rope_positions_;
  std::vector<int> tasks_;  // of each op, in this step
  TaskShares shares_[2];    // of the op under way and of the one after it
  std::vector<int64_t> op_times_;
  Step step_;
  bool profiling_ = false;
};

}  // namespace headrace
