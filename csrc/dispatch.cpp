#include "dispatch.h"

#include <stdexcept>

namespace headrace {

namespace portable {
const KernelTable& kernel_table();
}
#ifdef HEADRACE_X86
namespace avx2 {
const KernelTable& kernel_table();
}
namespace avx512 {
const KernelTable& kernel_table();
}
#endif

namespace {

std::vector<const KernelTable*> tables() {
  std::vector<const KernelTable*> found;
#ifdef HEADRACE_X86
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
    found.push_back(&avx512::kernel_table());
  if (has_avx2) found.push_back(&avx2::kernel_table());
#endif
  found.push_back(&portable::kernel_table());
  return found;
}

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const KernelTable* table : tables()) names.push_back(table->name);
  return names;
}

std::vector<std::string> cpu_features() {
  std::vector<std::string> names;
#ifdef HEADRACE_X86
#define HEADRACE_FEATURE(name) \
  if (__builtin_cpu_supports(name)) names.push_back(name)
  HEADRACE_FEATURE("avx2");
  HEADRACE_FEATURE("fma");
  HEADRACE_FEATURE("f16c");
  HEADRACE_FEATURE("avx512f");
  HEADRACE_FEATURE("avx512bw");
  HEADRACE_FEATURE("avx512dq");
  HEADRACE_FEATURE("avx512vl");
  HEADRACE_FEATURE("avx512vnni");
  HEADRACE_FEATURE("avx512bf16");
#undef HEADRACE_FEATURE
#endif
  return names;
}

const KernelTable& select_kernels(const std::string& isa) {
  const auto found = tables();
  if (isa == "auto") return *found.front();
  std::string names;
  for (const KernelTable* table : found) {
    if (isa == table->name) return *table;
    names += (names.empty() ? "" : ", ") + std::string(table->name);
  }
  throw std::invalid_argument("isa must be auto or one that this processor has (" + names + "), got '" + isa + "'");
}

}  // namespace headrace
