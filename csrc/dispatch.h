// Chooses a kernel table at run time: by what this processor can do, or by name.
#pragma once
#include <string>
#include <vector>

#include "kernels.h"

namespace headrace {

// Part of the numerics fingerprint: raised whenever a kernel's results may change in any bit.
constexpr const char* kKernelVersion = "1";

// Instruction sets that were compiled in and that this processor has, best first.
std::vector<std::string> available_isas();

// Processor features that matter to kernels, e.g. "avx2".
std::vector<std::string> cpu_features();

// isa: "auto" or a name. Throws std::invalid_argument, naming the available ones, for any other.
const KernelTable& select_kernels(const std::string& isa);

}  // namespace headrace
