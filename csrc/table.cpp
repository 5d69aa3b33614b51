// The table of one instruction set. Compiled once for each.
#include "kernel_functions.h"

namespace headrace::HEADRACE_ISA {

#define HEADRACE_STRING(x) HEADRACE_STRING_OF(x)
#define HEADRACE_STRING_OF(x) #x

const KernelTable& kernel_table() {
  static constexpr KernelTable table = {
      HEADRACE_STRING(HEADRACE_ISA),
      quantize_rows,
      linear_float,
      linear_quantized,
      embed_row,
      rms_norm,
      gated_activation,
      softcap,
      add_scaled,
      rope,
      kv_write,
      attention,
      attention_run,
      attention_merge,
      sample_row,
      ceiling_int8,
      ceiling_float,
      ceiling_read,
  };
  return table;
}

}  // namespace headrace::HEADRACE_ISA
