// An op that computes each row of its output from the same row of something, in chunks of rows.
#pragma once
#include <algorithm>

#include "program_ops.h"

namespace headrace {

// Chunks of rows: some for each thread, so that a slow one does not hold up the others.
inline int rows_per_task(int rows, int threads) { return std::max(1, rows / (threads * 4)); }
inline int divide_up(int a, int b) { return (a + b - 1) / b; }

class RowOp : public Op {
 public:
  RowOp(const Program& program, int output, int quantize_width)
      : kernels_(program.kernels()), output_(program.buffer(output)), quantize_width_(quantize_width) {}

  int tasks(const Step& step) const final {
    const int rows = step.count(output_);
    return divide_up(rows, rows_per_task(rows, step.threads));
  }

  void run(const Step& step, int task, int) const final {
    const int rows = step.count(output_), chunk = rows_per_task(rows, step.threads);
    for (int row = task * chunk; row < std::min(rows, (task + 1) * chunk); ++row) {
      compute_row(step, row);
      if (quantize_width_ > 0) quantize_columns(kernels_, output_, row, quantize_width_, 0, quantize_width_);
    }
  }

 protected:
  virtual void compute_row(const Step& step, int row) const = 0;
  float* output_row(int row) const { return output_.data + row * output_.stride; }

  const KernelTable& kernels_;
  const Buffer output_;

 private:
  const int quantize_width_;
};

}  // namespace headrace
