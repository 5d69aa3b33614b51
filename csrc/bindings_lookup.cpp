// Python's view of guessing by lookup (worker/drafters/lookup.py).
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <utility>

#include "bindings.h"
#include "lookup.h"

namespace nb = nanobind;

namespace headrace {

using Tokens = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void bind_lookup(nb::module_& m) {
  nb::class_<Text>(m, "Text", "A text that grows, and where each run of so many (1 or 2) of its tokens has ended.")
      .def("__init__",
           [](Text* self, int run) {
             if (run < 1 || run > 2) throw std::invalid_argument("run must be 1 or 2");
             new (self) Text(run);
           },
           nb::arg("run"))
      .def("__len__", &Text::size)
      .def("extend", [](Text& self, const Tokens& tokens) { self.extend(tokens.data(), tokens.shape(0)); })
      .def(
          "guess",
          [](Text& self, const Tokens& tokens, const std::vector<const Text*>& others, int most, double least) {
            if (tokens.shape(0) < self.size()) throw std::invalid_argument("tokens must begin with this text");
            self.extend(tokens.data() + self.size(), tokens.shape(0) - self.size());
            Guesses guesses = guess(self, others, most, least);
            return std::pair(std::move(guesses.tokens), std::move(guesses.odds));
          },
          nb::arg("tokens"), nb::arg("others"), nb::arg("most"), nb::arg("least"),
          "This text becomes `tokens`, which begin with it; then (tokens, odds) of what may follow.");
}

}  // namespace headrace
