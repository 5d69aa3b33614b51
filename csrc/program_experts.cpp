// Ops of mixtures of experts. A row goes to the experts that its own logits choose, and each of its products is
// computed as if it were alone: rows that share an expert are only brought together to read its weights once.
#include "program_experts.h"

#include <cmath>
#include <cstring>

#include "row_op.h"

namespace headrace {

namespace {

class Add final : public RowOp {
 public:
  const char* name() const override { return "add"; }
  Add(const Program& program, int input, int output, int width, float scale, int quantize_width)
      : RowOp(program, output, quantize_width), input_(program.buffer(input)), width_(width), scale_(scale) {}
  void compute_row(const Step&, int row) const override {
    kernels_.add_scaled(input_.data + row * input_.stride, output_row(row), width_, scale_);
  }

 private:
  const Buffer input_;
  const int width_;
  const float scale_;
};

class RouteExperts final : public RowOp {
 public:
  const char* name() const override { return "route_experts"; }
  RouteExperts(const Program& program, int input, int output, int experts, int taken, bool normalize)
      : RowOp(program, output, 0), input_(program.buffer(input)), experts_(experts), taken_(taken),
        normalize_(normalize) {}

  void compute_row(const Step&, int row) const override {
    const float* logits = input_.data + row * input_.stride;
    float* index = output_row(row);
    float* weight = index + taken_;
    float largest = logits[0], sum = 0.0f, taken_sum = 0.0f;
    for (int e = 1; e < experts_; ++e) largest = std::max(largest, logits[e]);
    for (int e = 0; e < experts_; ++e) sum += std::exp(logits[e] - largest);
    int last = -1;
    for (int j = 0; j < taken_; ++j) {
      last = next_best(logits, last);
      index[j] = static_cast<float>(last);
      weight[j] = std::exp(logits[last] - largest) / sum;
      taken_sum += weight[j];
    }
    if (normalize_)
      for (int j = 0; j < taken_; ++j) weight[j] /= taken_sum;
  }

 private:
  // The expert after `last` (-1: the first) in falling order of logits, the lower index first among equals. Where NaN
  // leaves none, any will do: the sum is NaN, so the weights are.
  int next_best(const float* logits, int last) const {
    int best = -1;
    for (int e = 0; e < experts_; ++e) {
      const bool after = last < 0 || logits[e] < logits[last] || (logits[e] == logits[last] && e > last);
      if (after && (best < 0 || logits[e] > logits[best])) best = e;
    }
    return best < 0 ? 0 : best;
  }

  const Buffer input_;
  const int experts_, taken_;
  const bool normalize_;
};

class MixExperts final : public RowOp {
 public:
  const char* name() const override { return "mix_experts"; }
  MixExperts(const Program& program, int input, int output, int routes, int width, int taken, float scale)
      : RowOp(program, output, 0), input_(program.buffer(input)), routes_(program.buffer(routes)), width_(width),
        taken_(taken), scale_(scale) {}
  void compute_row(const Step&, int row) const override {
    const float* x = input_.data + row * input_.stride;
    const float* weight = routes_.data + row * routes_.stride + taken_;
    for (int j = 0; j < taken_; ++j) kernels_.add_scaled(x + j * width_, output_row(row), width_, scale_ * weight[j]);
  }

 private:
  const Buffer input_, routes_;
  const int width_, taken_;
  const float scale_;
};

// A product is a row and one of its experts; product p is row p / taken, choice p % taken.
class ExpertLinear final : public Op {
 public:
  const char* name() const override { return "expert_linear"; }
  ExpertLinear(Program& program, int input, int output, int routes, const PackedMatrix& matrix,
               const ExpertShape& shape)
      : program_(program), input_(program.buffer(input)), output_(program.buffer(output)),
        routes_(program.buffer(routes)), matrix_(matrix), shape_(shape), n_(matrix.n / shape.experts),
        k_segment_(shape.k_segment > 0 ? shape.k_segment : matrix.k),
        quantized_(matrix.scheme == Scheme::Q8 || matrix.scheme == Scheme::Q4) {
    program.reserve_scratch(sizeof(float) * kTogether * (static_cast<size_t>(matrix.k) + n_));
  }

  int tasks(const Step& step) const override {
    return groups(step) == 0 ? 0 : groups(step) * divide_up(tiles(), tile_chunk(step));
  }

  void run(const Step& step, int task, int worker) const override {
    const int chunk = tile_chunk(step), pieces = divide_up(tiles(), chunk);
    const int group = task / pieces, begin = task % pieces * chunk, end = std::min(tiles(), begin + chunk);
    const int products = step.count(output_) * shape_.taken;
    // Few products: a task for each, done by the first of those with the same expert. Many: one for each expert.
    const bool few = products <= shape_.experts;
    const int expert = few ? expert_of(group) : group;
    if (few)
      for (int p = 0; p < group; ++p)
        if (expert_of(p) == expert) return;
    int found[kTogether], count = 0;
    for (int p = few ? group : 0; p < products; ++p) {
      if (expert_of(p) != expert) continue;
      found[count++] = p;
      if (count == kTogether) {
        compute(found, count, expert, begin, end, program_.scratch(worker));
        count = 0;
      }
    }
    if (count > 0) compute(found, count, expert, begin, end, program_.scratch(worker));
  }

 private:
  static constexpr int kTogether = 32;  // products of one expert in one call of a kernel

  int tiles() const { return n_ / kTile; }  // of one expert
  int groups(const Step& step) const { return std::min(step.count(output_) * shape_.taken, shape_.experts); }
  int tile_chunk(const Step& step) const {
    if (step.threads == 1) return tiles();
    return std::max(1, tiles() / divide_up(step.threads * 4, groups(step)));
  }
  int expert_of(int product) const {
    return static_cast<int>(routes_.data[product / shape_.taken * routes_.stride + product % shape_.taken]);
  }
  // Where a product's input begins, in rows of `stride` values.
  ptrdiff_t source(int product, ptrdiff_t stride) const {
    const ptrdiff_t run = shape_.shared_input ? 0 : static_cast<ptrdiff_t>(product % shape_.taken) * matrix_.k;
    return product / shape_.taken * stride + run;
  }
  float* target(int product) const {
    return output_.data + product / shape_.taken * output_.stride + shape_.column +
           static_cast<ptrdiff_t>(product % shape_.taken) * n_;
  }

  void compute(const int* products, int count, int expert, int begin, int end, float* scratch) const {
    float* y = count == 1 ? target(products[0]) : scratch + static_cast<ptrdiff_t>(kTogether) * matrix_.k;
    // Kernels write at the matrix's own columns, those of this expert begin at expert * n.
    const LinearOut out{y - static_cast<ptrdiff_t>(expert) * n_, n_, nullptr, false, 1.0f, k_segment_};
    const int first = expert * tiles() + begin, last = expert * tiles() + end;
    if (quantized_)
      program_.kernels().linear_quantized(gather_quantized(products, count, scratch), count, matrix_, out, first, last);
    else
      program_.kernels().linear_float(gather(products, count, scratch), matrix_.k, count, matrix_, out, first, last);
    if (count == 1) return;
    for (int i = 0; i < count; ++i)
      std::memcpy(target(products[i]) + begin * kTile, y + static_cast<ptrdiff_t>(i) * n_ + begin * kTile,
                  sizeof(float) * (end - begin) * kTile);
  }

  const float* gather(const int* products, int count, float* scratch) const {
    if (count == 1) return input_.data + source(products[0], input_.stride);
    for (int i = 0; i < count; ++i)
      std::memcpy(scratch + static_cast<ptrdiff_t>(i) * matrix_.k, input_.data + source(products[i], input_.stride),
                  sizeof(float) * matrix_.k);
    return scratch;
  }

  QuantizedRows gather_quantized(const int* products, int count, float* scratch) const {
    const ptrdiff_t k = matrix_.k, runs = k / kActivationGroup, width = shape_.shared_input ? k : k * shape_.taken;
    if (count == 1) {
      const ptrdiff_t at = source(products[0], width), run = at / kActivationGroup;
      return {input_.q + at, input_.scale + run, input_.scaled_sum + run, matrix_.k};
    }
    float* scale = scratch;
    float* scaled_sum = scale + kTogether * runs;
    int8_t* q = reinterpret_cast<int8_t*>(scaled_sum + kTogether * runs);
    for (int i = 0; i < count; ++i) {
      const ptrdiff_t at = source(products[i], width), run = at / kActivationGroup;
      std::memcpy(q + i * k, input_.q + at, k);
      std::memcpy(scale + i * runs, input_.scale + run, sizeof(float) * runs);
      std::memcpy(scaled_sum + i * runs, input_.scaled_sum + run, sizeof(float) * runs);
    }
    return {q, scale, scaled_sum, matrix_.k};
  }

  const Program& program_;
  const Buffer input_, output_, routes_;
  const PackedMatrix matrix_;
  const ExpertShape shape_;
  const int n_, k_segment_;
  const bool quantized_;
};

}  // namespace

void add_add(Program& program, int input, int output, int width, float scale, int quantize_width) {
  program.add_op(std::make_unique<Add>(program, input, output, width, scale, quantize_width));
}
void add_route_experts(Program& program, int input, int output, int experts, int taken, bool normalize) {
  program.add_op(std::make_unique<RouteExperts>(program, input, output, experts, taken, normalize));
}
void add_expert_linear(Program& program, int input, int output, int routes, const PackedMatrix& matrix,
                       const ExpertShape& shape) {
  program.add_op(std::make_unique<ExpertLinear>(program, input, output, routes, matrix, shape));
}
void add_mix_experts(Program& program, int input, int output, int routes, int width, int taken, float scale) {
  program.add_op(std::make_unique<MixExperts>(program, input, output, routes, width, taken, scale));
}

}  // namespace headrace
