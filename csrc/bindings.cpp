// The Python module headrace._kernels.
#include "bindings.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "thread_pool.h"

namespace nb = nanobind;
using namespace headrace;

NB_MODULE(_kernels, m) {
  m.attr("VERSION") = kKernelVersion;
  m.attr("SOURCES") = HEADRACE_SOURCES;
  m.attr("ACTIVATION_GROUP") = kActivationGroup;
  m.attr("SPLIT") = kSplit;
  m.def("available_isas", &available_isas, "Instruction sets this build and this processor have, best first.");
  m.def("cpu_features", &cpu_features, "Processor features that matter to kernels.");

  nb::class_<Kernels>(m, "Kernels", "The kernels of one instruction set; ValueError if it is not available.")
      .def("__init__",
           [](Kernels* self, const std::string& isa) { new (self) Kernels{&select_kernels(isa)}; },
           nb::arg("isa") = "auto")
      .def_prop_ro("name", [](const Kernels& self) { return self.table->name; });

  nb::class_<ThreadPool>(m, "ThreadPool", "Threads that run programs, the calling one included.")
      .def(nb::init<int, const std::vector<int>&>(), nb::arg("threads"), nb::arg("cpus") = std::vector<int>{},
           "Worker i is kept on the i-th of cpus, the caller is left free. RuntimeError if the system refuses.")
      .def_prop_ro("threads", &ThreadPool::threads);

  bind_weights(m);
  bind_sampling(m);
  bind_ceilings(m);
  bind_inputs(m);
  bind_program(m);
  bind_lookup(m);
}
