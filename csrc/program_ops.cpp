// Ops over rows: everything but attention.
#include "row_op.h"

#include <algorithm>
#include <cstring>

namespace headrace {

namespace {

class Embed final : public RowOp {
 public:
  const char* name() const override { return "embed"; }
  Embed(const Program& program, int output, const PackedMatrix& matrix, float scale)
      : RowOp(program, output, 0), matrix_(matrix), scale_(scale) {}
  void compute_row(const Step& step, int row) const override {
    kernels_.embed_row(matrix_, step.inputs.tokens[row], scale_, output_row(row));
  }

 private:
  const PackedMatrix matrix_;
  const float scale_;
};

class RmsNorm final : public RowOp {
 public:
  const char* name() const override { return "rms_norm"; }
  RmsNorm(const Program& program, int input, int output, const float* weight, const NormShape& shape,
          int quantize_width)
      : RowOp(program, output, quantize_width), input_(program.buffer(input)), weight_(weight), shape_(shape) {}
  void compute_row(const Step&, int row) const override {
    const float* x = input_.data + row * input_.stride;
    for (int i = shape_.begin; i < shape_.end; i += shape_.width)
      kernels_.rms_norm(x + i, output_row(row) + i, weight_, shape_.width, shape_.eps);
  }

 private:
  const Buffer input_;
  const float* weight_;
  const NormShape shape_;
};

class Quantize final : public RowOp {
 public:
  const char* name() const override { return "quantize"; }
  using RowOp::RowOp;
  void compute_row(const Step&, int) const override {}
};

class SelectRows final : public RowOp {
 public:
  const char* name() const override { return "select_rows"; }
  SelectRows(const Program& program, int input, int output, int width, int quantize_width)
      : RowOp(program, output, quantize_width), input_(program.buffer(input)), width_(width) {}
  void compute_row(const Step& step, int row) const override {
    std::memcpy(output_row(row), input_.data + step.inputs.logit_rows[row] * input_.stride, sizeof(float) * width_);
  }

 private:
  const Buffer input_;
  const int width_;
};

class RopeKV final : public RowOp {
 public:
  const char* name() const override { return "rope_kv"; }
  RopeKV(const Program& program, int qkv, const HeadShape& shape, const RopeShape& rope)
      : RowOp(program, qkv, 0), shape_(shape), rope_(rope), kv_(program.group(shape.group).view(shape.layer)) {}
  void compute_row(const Step& step, int row) const override {
    float* q = output_row(row);
    float* k = q + shape_.heads * shape_.head_dim;
    if (rope_.table != nullptr) {
      const float* angles = rope_.table + static_cast<ptrdiff_t>(step.inputs.positions[row]) * rope_.rotary_dim;
      kernels_.rope(q, shape_.heads + shape_.kv_heads, shape_.head_dim, rope_.rotary_dim, angles, rope_.interleaved);
    }
    kernels_.kv_write(kv_, shape_.kv_heads, step.row_block[shape_.group][row], step.row_slot[shape_.group][row], k,
                      k + shape_.kv_heads * shape_.head_dim);
  }

 private:
  const HeadShape shape_;
  const RopeShape rope_;
  const KVView kv_;
};

// An op whose rows are also cut into runs of columns, so that few rows keep all threads busy.
class ColumnOp : public Op {
 public:
  ColumnOp(const Program& program, int output, int width, int quantize_width)
      : kernels_(program.kernels()), output_(program.buffer(output)), width_(width), quantize_width_(quantize_width) {}

  int tasks(const Step& step) const final {
    const int rows = step.count(output_);
    return divide_up(rows, rows_per_task(rows, step.threads)) * pieces();
  }

  void run(const Step& step, int task, int) const final {
    const int rows = step.count(output_), chunk = rows_per_task(rows, step.threads);
    const int first = task / pieces() * chunk, begin = task % pieces() * kPiece;
    const int width = std::min(kPiece, width_ - begin);
    for (int row = first; row < std::min(rows, first + chunk); ++row) {
      compute_piece(row, begin, width);
      if (quantize_width_ > 0) quantize_columns(kernels_, output_, row, quantize_width_, begin, width);
    }
  }

 protected:
  virtual void compute_piece(int row, int begin, int width) const = 0;
  float* output_row(int row) const { return output_.data + row * output_.stride; }

  const KernelTable& kernels_;
  const Buffer output_;
  const int width_;

 private:
  static constexpr int kPiece = 2048;  // columns: whole vectors, and whole runs of activations
  int pieces() const { return divide_up(width_, kPiece); }
  const int quantize_width_;
};

class GatedActivation final : public ColumnOp {
 public:
  const char* name() const override { return "gated_activation"; }
  GatedActivation(const Program& program, int input, int output, int width, Activation activation, int quantize_width)
      : ColumnOp(program, output, width, quantize_width), input_(program.buffer(input)), activation_(activation) {}
  void compute_piece(int row, int begin, int width) const override {
    const float* gate = input_.data + row * input_.stride + begin;
    kernels_.gated_activation(gate, gate + width_, output_row(row) + begin, width, activation_);
  }

 private:
  const Buffer input_;
  const Activation activation_;
};

class Softcap final : public ColumnOp {
 public:
  const char* name() const override { return "softcap"; }
  Softcap(const Program& program, int buffer, int width, float cap) : ColumnOp(program, buffer, width, 0), cap_(cap) {}
  void compute_piece(int row, int begin, int width) const override {
    kernels_.softcap(output_row(row) + begin, width, cap_);
  }

 private:
  const float cap_;
};

class Linear final : public Op {
 public:
  const char* name() const override { return "linear"; }
  Linear(const Program& program, int input, int output, const PackedMatrix& matrix, const float* bias,
         bool accumulate, float scale, int k_segment)
      : kernels_(program.kernels()), input_(program.buffer(input)), output_(program.buffer(output)), matrix_(matrix),
        bias_(bias), accumulate_(accumulate), scale_(scale), k_segment_(k_segment > 0 ? k_segment : matrix.k),
        index_(program.num_ops()), quantized_(matrix.scheme == Scheme::Q8 || matrix.scheme == Scheme::Q4) {}

  int tasks(const Step& step) const override {
    const int rows = step.count(output_);
    return rows == 0 ? 0 : tile_tasks(step) * divide_up(rows, row_chunk(step));
  }

  void run(const Step& step, int task, int) const override {
    const int parts = tile_tasks(step), part = task % parts;
    const int begin = part_of(tiles(), part, parts), end = part_of(tiles(), part + 1, parts);
    const ptrdiff_t first = static_cast<ptrdiff_t>(task / parts) * row_chunk(step);
    const int rows = static_cast<int>(std::min<ptrdiff_t>(row_chunk(step), step.count(output_) - first));
    const LinearOut out{output_.data + first * output_.stride, output_.stride, bias_, accumulate_, scale_, k_segment_};
    if (quantized_) {
      const ptrdiff_t k = matrix_.k, runs = k / kActivationGroup;
      const QuantizedRows x{input_.q + first * k, input_.scale + first * runs, input_.scaled_sum + first * runs,
                            matrix_.k, step.number << 20 | index_};
      kernels_.linear_quantized(x, rows, matrix_, out, begin, end);
    } else {
      kernels_.linear_float(input_.data + first * input_.stride, input_.stride, rows, matrix_, out, begin, end);
    }
  }

 private:
  static constexpr int kRowChunk = 64;  // when tiles alone are too few for the threads
  static constexpr int kManyTiles = 256;
  static constexpr int kFewRows = 64;

  int tiles() const { return divide_up(matrix_.n, kTile); }
  // The more the smaller what a late thread leaves to wait for; but many rows are laid out anew for each task.
  int tile_tasks(const Step& step) const {
    if (step.threads == 1) return 1;
    const bool small = step.count(output_) <= kFewRows || tiles() >= step.threads * kManyTiles;
    return std::min(tiles(), step.threads * (small ? 16 : 4));
  }
  static int part_of(int tiles, ptrdiff_t part, int parts) { return static_cast<int>(tiles * part / parts); }
  int row_chunk(const Step& step) const {
    return tiles() >= step.threads * 4 ? std::max(1, step.count(output_)) : kRowChunk;
  }

  const KernelTable& kernels_;
  const Buffer input_, output_;
  const PackedMatrix matrix_;
  const float* bias_;
  const bool accumulate_;
  const float scale_;
  const int k_segment_, index_;  // index: of this op in its program
  const bool quantized_;
};

}  // namespace

void quantize_columns(const KernelTable& kernels, const Buffer& buffer, ptrdiff_t row, int width, int begin, int count) {
  const ptrdiff_t run = (row * width + begin) / kActivationGroup;
  kernels.quantize_rows(buffer.data + row * buffer.stride + begin, buffer.stride, 1, count, buffer.q + row * width + begin,
                        buffer.scale + run, buffer.scaled_sum + run);
}

void add_embed(Program& program, int output, const PackedMatrix& matrix, float scale) {
  program.add_op(std::make_unique<Embed>(program, output, matrix, scale));
}
void add_rms_norm(Program& program, int input, int output, const float* weight, const NormShape& shape,
                  int quantize_width) {
  program.add_op(std::make_unique<RmsNorm>(program, input, output, weight, shape, quantize_width));
}
void add_quantize(Program& program, int buffer, int quantize_width) {
  program.add_op(std::make_unique<Quantize>(program, buffer, quantize_width));
}
void add_linear(Program& program, int input, int output, const PackedMatrix& matrix, const float* bias,
                bool accumulate, float scale, int k_segment) {
  program.add_op(
      std::make_unique<Linear>(program, input, output, matrix, bias, accumulate, scale, k_segment));
}
void add_rope_kv(Program& program, int qkv, const HeadShape& shape, const RopeShape& rope) {
  program.add_op(std::make_unique<RopeKV>(program, qkv, shape, rope));
}
void add_gated_activation(Program& program, int input, int output, int width, Activation activation,
                          int quantize_width) {
  program.add_op(
      std::make_unique<GatedActivation>(program, input, output, width, activation, quantize_width));
}
void add_select_rows(Program& program, int input, int output, int width, int quantize_width) {
  program.add_op(std::make_unique<SelectRows>(program, input, output, width, quantize_width));
}
void add_softcap(Program& program, int buffer, int width, float cap) {
  program.add_op(std::make_unique<Softcap>(program, buffer, width, cap));
}

}  // namespace headrace
