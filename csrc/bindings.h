// What the parts of the Python module share. Each part binds its own classes and functions; bindings.cpp calls
// them in order.
#pragma once
#include <nanobind/nanobind.h>

#include "dispatch.h"

namespace headrace {

// A kernel table as a Python object.
struct Kernels {
  const KernelTable* table;
};

void bind_weights(nanobind::module_& m);
void bind_sampling(nanobind::module_& m);
void bind_program(nanobind::module_& m);
void bind_ceilings(nanobind::module_& m);
void bind_lookup(nanobind::module_& m);
void bind_inputs(nanobind::module_& m);

}  // namespace headrace
