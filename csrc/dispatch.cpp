#include "dispatch.h"

#include <algorithm>
#include <stdexcept>

namespace headrace {

namespace portable {
const KernelTable& kernel_table();
}
#ifdef HEADRACE_HAS_avx2
namespace avx2 {
const KernelTable& kernel_table();
}
#endif
#ifdef HEADRACE_HAS_avxvnni
namespace avxvnni {
const KernelTable& kernel_table();
}
#endif
#ifdef HEADRACE_HAS_avx512
namespace avx512 {
const KernelTable& kernel_table();
}
#endif
#ifdef HEADRACE_HAS_avx512bf16
namespace avx512bf16 {
void linear_float(const float* x, ptrdiff_t stride, int rows, const PackedMatrix& w, const LinearOut& out,
                  int tile_begin, int tile_end);
// The AVX-512 set but for matrices of BF16.
const KernelTable& kernel_table() {
  static const KernelTable table = [] {
    KernelTable changed = avx512::kernel_table();
    changed.name = "avx512bf16";
    changed.linear_float = linear_float;
    return changed;
  }();
  return table;
}
}  // namespace avx512bf16
#endif

std::vector<std::string> cpu_features() {
  std::vector<std::string> names;
#ifdef HEADRACE_X86
#define HEADRACE_FEATURE(name) \
  if (__builtin_cpu_supports(name)) names.push_back(name)
  HEADRACE_FEATURE("avx2");
  HEADRACE_FEATURE("fma");
  HEADRACE_FEATURE("f16c");
#ifdef HEADRACE_HAS_avxvnni
  HEADRACE_FEATURE("avxvnni");
#endif
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

namespace {

[[maybe_unused]] bool has(const std::vector<std::string>& wanted) {
  const std::vector<std::string> features = cpu_features();
  return std::all_of(wanted.begin(), wanted.end(), [&](const std::string& feature) {
#ifdef HEADRACE_EMULATE
    if (feature.rfind("avx512", 0) == 0 || feature == "avxvnni") return true;
#endif
    return std::find(features.begin(), features.end(), feature) != features.end();
  });
}

std::vector<const KernelTable*> tables() {
  std::vector<const KernelTable*> found;
#ifdef HEADRACE_HAS_avx512
  if (has({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "avx2", "fma", "f16c"})) {
#ifdef HEADRACE_HAS_avx512bf16
    if (has({"avx512bf16"})) found.push_back(&avx512bf16::kernel_table());
#endif
    found.push_back(&avx512::kernel_table());
  }
#endif
#ifdef HEADRACE_HAS_avxvnni
  if (has({"avxvnni", "avx2", "fma", "f16c"})) found.push_back(&avxvnni::kernel_table());
#endif
#ifdef HEADRACE_HAS_avx2
  if (has({"avx2", "fma", "f16c"})) found.push_back(&avx2::kernel_table());
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
