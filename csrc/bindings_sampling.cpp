// Python's view of sampling: a Sampler bound to the arrays of a SamplingTable (ops/sampling.py). Rows are shared out
// among the pool's threads, each with working memory of its own.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <atomic>
#include <stdexcept>
#include <string>

#include "bindings.h"
#include "sampling.h"
#include "thread_pool.h"

namespace nb = nanobind;

namespace headrace {

namespace {

template <class T>
using Array1 = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Array2 = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

class Sampler {
 public:
  Sampler(const Kernels& kernels, ThreadPool& pool, int vocab, int num_slots, const SamplingSlots& slots)
      : kernels_(*kernels.table), pool_(pool), vocab_(vocab), num_slots_(num_slots), slots_(slots),
        room_(static_cast<size_t>(vocab) + kSamplingMargin) {
    floats_.resize(2 * room_ * pool.threads());
    ints_.resize(2 * room_ * pool.threads());
  }

  int vocab() const { return vocab_; }

  void run(SamplingRows& rows, int count, ptrdiff_t history_length) {
    rows.slots = slots_;
    rows.vocab = vocab_;
    for (int row = 0; row < count; ++row) check(rows, row, history_length);
    if (count == 1) {
      kernels_.sample_row(rows, 0, scratch(0));
      return;
    }
    std::atomic<int> next{0};
    pool_.run([&](int worker) {
      for (int row; (row = next.fetch_add(1, std::memory_order_relaxed)) < count;)
        kernels_.sample_row(rows, row, scratch(worker));
    });
  }

 private:
  void check(const SamplingRows& rows, int row, ptrdiff_t history_length) const {
    const int slot = rows.slot[row], position = rows.position[row];
    if (slot < 0 || slot >= num_slots_)
      throw std::invalid_argument("slots must lie in 0.." + std::to_string(num_slots_ - 1) + ", got " +
                                  std::to_string(slot));
    if (position < 0 || position >= history_length + rows.sample[row])
      throw std::invalid_argument("positions must lie in the history of " + std::to_string(history_length) +
                                  " tokens, got " + std::to_string(position));
    if (rows.sample[row]) return;
    const int32_t token = rows.history[slot * rows.history_stride + position];
    if (token < 0 || token >= vocab_)
      throw std::invalid_argument("a scored token must lie in the vocabulary, got " + std::to_string(token));
  }

  SamplingScratch scratch(int worker) {
    float* floats = floats_.data() + 2 * room_ * worker;
    int32_t* ints = ints_.data() + 2 * room_ * worker;
    return {floats, floats + room_, ints, ints + room_};
  }

  const KernelTable& kernels_;
  ThreadPool& pool_;
  const int vocab_, num_slots_;
  const SamplingSlots slots_;
  const size_t room_;
  std::vector<float> floats_;
  std::vector<int32_t> ints_;
};

void require(bool ok, const char* message) {
  if (!ok) throw std::invalid_argument(message);
}

void run(Sampler& sampler, Array2<const float> logits, Array1<const int32_t> slots, Array1<const int32_t> positions,
         Array1<const bool> sample, Array1<const int32_t> top, Array2<const int32_t> history,
         std::optional<Array1<const int32_t>> adjust_begin, std::optional<Array1<const int32_t>> adjust_id,
         std::optional<Array1<const float>> adjust_value, std::optional<Array1<const int32_t>> mask_row,
         std::optional<Array2<const uint32_t>> masks, Array1<int32_t> token, Array1<bool> failed,
         std::optional<Array1<float>> logprob, std::optional<Array1<int32_t>> rank,
         std::optional<Array2<int32_t>> top_ids, std::optional<Array2<float>> top_logprobs) {
  const size_t count = slots.shape(0);
  require(logits.shape(0) == count && positions.shape(0) == count && sample.shape(0) == count &&
              top.shape(0) == count && token.shape(0) == count && failed.shape(0) == count,
          "logits, slots, positions, sample and top must have one row each");
  require(static_cast<int>(logits.shape(1)) == sampler.vocab(), "logits must be as wide as the vocabulary");
  SamplingRows rows{};
  rows.logits = logits.data();
  rows.logit_stride = static_cast<ptrdiff_t>(logits.shape(1));
  rows.slot = slots.data();
  rows.position = positions.data();
  rows.top = top.data();
  rows.sample = reinterpret_cast<const uint8_t*>(sample.data());
  rows.history = history.data();
  rows.history_stride = static_cast<ptrdiff_t>(history.shape(1));
  if (adjust_begin) {
    require(adjust_id && adjust_value && adjust_begin->shape(0) == count + 1 &&
                static_cast<size_t>(adjust_begin->data()[count]) == adjust_id->shape(0) &&
                adjust_id->shape(0) == adjust_value->shape(0),
            "adjustments must be compressed rows: begin [rows + 1], ids and values");
    rows.adjust_begin = adjust_begin->data();
    rows.adjust_id = adjust_id->data();
    rows.adjust_value = adjust_value->data();
  }
  if (mask_row) {
    require(masks && mask_row->shape(0) == count && masks->shape(1) == (logits.shape(1) + 31) / 32,
            "masks must be words of 32 tokens, as wide as the vocabulary, with a row's mask or -1 for each row");
    for (size_t row = 0; row < count; ++row)
      require(mask_row->data()[row] < static_cast<int64_t>(masks->shape(0)), "a row's mask must be one of the masks");
    rows.mask_row = mask_row->data();
    rows.masks = masks->data();
    rows.mask_stride = static_cast<ptrdiff_t>(masks->shape(1));
  }
  rows.token = token.data();
  rows.failed = reinterpret_cast<uint8_t*>(failed.data());
  if (logprob) {
    require(rank && top_ids && top_logprobs && logprob->shape(0) == count && rank->shape(0) == count &&
                top_ids->shape(0) == count && top_logprobs->shape(0) == count &&
                top_ids->shape(1) == top_logprobs->shape(1),
            "logprob, rank, top_ids and top_logprobs must have one row each");
    rows.logprob = logprob->data();
    rows.rank = rank->data();
    rows.top_ids = top_ids->data();
    rows.top_logprobs = top_logprobs->data();
    rows.top_width = static_cast<int>(top_ids->shape(1));
  }
  for (size_t row = 0; row < count; ++row)
    require(top.data()[row] < 0 || (rows.logprob && top.data()[row] <= rows.top_width),
            "top must be at most the width of top_ids");
  nb::gil_scoped_release release;
  sampler.run(rows, static_cast<int>(count), rows.history_stride);
}

}  // namespace

void bind_sampling(nb::module_& m) {
  nb::class_<Sampler>(m, "Sampler", "Samples and scores logit rows; ops/cpu_sampling.py is its face.")
      .def(
          "__init__",
          [](Sampler* self, const Kernels& kernels, ThreadPool& pool, int vocab, Array1<const float> temperature,
             Array1<const float> top_p, Array1<const float> min_p, Array1<const float> repetition,
             Array1<const float> frequency, Array1<const float> presence, Array1<const int32_t> top_k,
             Array1<const int32_t> prompt_len, Array1<const int32_t> choice, Array1<const uint64_t> seed) {
            const SamplingSlots slots{temperature.data(), top_p.data(),      min_p.data(), repetition.data(),
                                      frequency.data(),   presence.data(),   top_k.data(), prompt_len.data(),
                                      choice.data(),      seed.data()};
            new (self) Sampler(kernels, pool, vocab, static_cast<int>(temperature.shape(0)), slots);
          },
          nb::arg("kernels"), nb::arg("pool"), nb::arg("vocab"), nb::arg("temperature"), nb::arg("top_p"),
          nb::arg("min_p"), nb::arg("repetition"), nb::arg("frequency"), nb::arg("presence"), nb::arg("top_k"),
          nb::arg("prompt_len"), nb::arg("choice"), nb::arg("seed"), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
          "The arrays, one value a slot, are read at every run and must outlive the sampler.")
      .def("run", &run, nb::arg("logits"), nb::arg("slots"), nb::arg("positions"), nb::arg("sample"), nb::arg("top"),
           nb::arg("history"), nb::arg("adjust_begin").none(), nb::arg("adjust_id").none(),
           nb::arg("adjust_value").none(), nb::arg("mask_row").none(), nb::arg("masks").none(), nb::arg("token"), nb::arg("failed"), nb::arg("logprob").none(),
           nb::arg("rank").none(), nb::arg("top_ids").none(), nb::arg("top_logprobs").none());
}

}  // namespace headrace
