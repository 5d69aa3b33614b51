// The ops of a program, as ops/program.py describes them. Each constructor takes the program whose buffers, groups
// and kernels it uses. quantize_width w > 0 makes an op leave its output's first w columns in int8 too.
#pragma once
#include <memory>

#include "program.h"

namespace headrace {

struct NormShape {
  int begin, end, width;  // columns, in groups of `width`
  float eps;
};

struct HeadShape {
  int group, layer, heads, kv_heads, head_dim, v_head_dim;
};

struct RopeShape {
  const float* table;  // [positions][rotary_dim / 2][2], null for no rope
  int rotary_dim;
  bool interleaved;
};

// Leave columns [begin, begin + count) of a row in int8; rows of the int8 form are `width` long, the columns whole runs.
void quantize_columns(const KernelTable& kernels, const Buffer& buffer, ptrdiff_t row, int width, int begin, int count);

void add_embed(Program& program, int output, const PackedMatrix& matrix, float scale);
void add_rms_norm(Program& program, int input, int output, const float* weight, const NormShape& shape,
                  int quantize_width);
void add_quantize(Program& program, int buffer, int quantize_width);
void add_linear(Program& program, int input, int output, const PackedMatrix& matrix, const float* bias,
                bool accumulate, float scale, int k_segment);
void add_rope_kv(Program& program, int qkv, const HeadShape& shape, const RopeShape& rope);
void add_attention(Program& program, int qkv, int output, const HeadShape& heads, const AttentionShape& shape,
                   int quantize_width);
void add_gated_activation(Program& program, int input, int output, int width, Activation activation,
                          int quantize_width);
void add_select_rows(Program& program, int input, int output, int width, int quantize_width);
void add_softcap(Program& program, int buffer, int width, float cap);

}  // namespace headrace
