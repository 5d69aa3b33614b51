// From a Batch (core/batch.py) to the arrays that a program reads (ops/step.py), and samples back to where the next step
// reads them. Arrays are bound once; worker/inputs.py is its face.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "bindings.h"

namespace nb = nanobind;

namespace headrace {

namespace {

template <class T>
using Array1 = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = Array1<int32_t>;
using GivenInts = Array1<const int32_t>;

void check(const char* name, int64_t value, int64_t begin, int64_t end) {
  if (value < begin || value >= end)
    throw std::invalid_argument(std::string(name) + " must be from " + std::to_string(begin) + " to " +
                                std::to_string(end - 1) + ", got " + std::to_string(value));
}

class StepFiller {
 public:
  // known [slots][length]: tokens by slot and position. The others are a step's rows, entries and logit rows.
  StepFiller(nb::ndarray<int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu> known, Ints tokens, Ints positions,
             Ints entry_slot, Ints entry_row, Ints entry_start, Ints entry_count, Ints logit_rows, Ints logit_slot,
             Ints logit_position)
      : known_(known.data()), num_slots_(known.shape(0)), length_(known.shape(1)), max_rows_(tokens.shape(0)),
        max_entries_(entry_slot.shape(0)), max_logits_(logit_rows.shape(0)), tokens_(tokens.data()),
        positions_(positions.data()), entry_slot_(entry_slot.data()), entry_row_(entry_row.data()),
        entry_start_(entry_start.data()), entry_count_(entry_count.data()), logit_rows_(logit_rows.data()),
        logit_slot_(logit_slot.data()), logit_position_(logit_position.data()) {
    check("logit_slot", logit_slot.shape(0), max_logits_, max_logits_ + 1);
    check("logit_position", logit_position.shape(0), max_logits_, max_logits_ + 1);
  }

  // How many rows the step has.
  int fill(GivenInts slots, GivenInts starts, GivenInts counts, GivenInts logit_entry, GivenInts logit_position,
           std::optional<GivenInts> draft_slot, std::optional<GivenInts> draft_position,
           std::optional<GivenInts> draft_token) {
    const int64_t entries = slots.shape(0), logits = logit_entry.shape(0);
    check("entries", entries, 0, max_entries_ + 1);
    check("logit rows", logits, 0, max_logits_ + 1);
    check("starts", starts.shape(0), entries, entries + 1);
    check("counts", counts.shape(0), entries, entries + 1);
    check("logit_position", logit_position.shape(0), logits, logits + 1);
    if (draft_slot && draft_position && draft_token) write_drafts(*draft_slot, *draft_position, *draft_token);
    int64_t row = 0;
    for (int64_t e = 0; e < entries; ++e) {
      const int64_t slot = slots.data()[e], start = starts.data()[e], count = counts.data()[e];
      check("slots", slot, 0, num_slots_);
      check("starts", start, 0, length_);
      check("counts", count, 1, std::min(max_rows_ - row, length_ - start) + 1);
      entry_slot_[e] = slot;
      entry_row_[e] = row;
      entry_start_[e] = start;
      entry_count_[e] = count;
      for (int64_t position = start; position < start + count; ++position, ++row) {
        positions_[row] = position;
        tokens_[row] = known_[slot * length_ + position];
      }
    }
    for (int64_t j = 0; j < logits; ++j) {
      const int64_t e = logit_entry.data()[j], position = logit_position.data()[j];
      check("logit_entry", e, 0, entries);
      check("logit_position", position, entry_start_[e], std::min<int64_t>(entry_start_[e] + entry_count_[e], length_ - 1));
      logit_rows_[j] = entry_row_[e] + position - entry_start_[e];
      logit_slot_[j] = entry_slot_[e];
      logit_position_[j] = position + 1;
    }
    logits_ = logits;
    return row;
  }

  void record(Array1<const bool> sample, GivenInts tokens) {
    check("sample", sample.shape(0), logits_, logits_ + 1);
    check("tokens", tokens.shape(0), logits_, logits_ + 1);
    for (int64_t j = 0; j < logits_; ++j)
      if (sample.data()[j]) known_[logit_slot_[j] * length_ + logit_position_[j]] = tokens.data()[j];
  }

 private:
  void write_drafts(const GivenInts& slot, const GivenInts& position, const GivenInts& token) {
    const int64_t drafts = slot.shape(0);
    check("draft positions", position.shape(0), drafts, drafts + 1);
    check("draft tokens", token.shape(0), drafts, drafts + 1);
    for (int64_t i = 0; i < drafts; ++i) {
      check("draft slots", slot.data()[i], 0, num_slots_);
      check("draft positions", position.data()[i], 0, length_);
      known_[slot.data()[i] * length_ + position.data()[i]] = token.data()[i];
    }
  }

  int32_t* const known_;
  const int64_t num_slots_, length_, max_rows_, max_entries_, max_logits_;
  int32_t *const tokens_, *const positions_, *const entry_slot_, *const entry_row_, *const entry_start_,
      *const entry_count_, *const logit_rows_, *const logit_slot_, *const logit_position_;
  int64_t logits_ = 0;
};

}  // namespace

void bind_inputs(nb::module_& m) {
  nb::class_<StepFiller>(m, "StepFiller", "Fills a step's arrays, which must outlive it.")
      .def(nb::init<nb::ndarray<int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>, Ints, Ints, Ints, Ints, Ints, Ints,
                    Ints, Ints, Ints>(),
           nb::arg("known"), nb::arg("tokens"), nb::arg("positions"), nb::arg("entry_slot"), nb::arg("entry_row"),
           nb::arg("entry_start"), nb::arg("entry_count"), nb::arg("logit_rows"), nb::arg("logit_slot"),
           nb::arg("logit_position"))
      .def("fill", &StepFiller::fill, nb::arg("slots"), nb::arg("starts"), nb::arg("counts"), nb::arg("logit_entry"),
           nb::arg("logit_position"), nb::arg("draft_slot").none(), nb::arg("draft_position").none(),
           nb::arg("draft_token").none(), "Rows of the step. ValueError for an index out of range.")
      .def("record", &StepFiller::record, nb::arg("sample"), nb::arg("tokens"),
           "Tokens of the logit rows that sample become known.");
}

}  // namespace headrace
