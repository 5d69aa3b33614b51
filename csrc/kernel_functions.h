// Declarations of every kernel, in the namespace of the instruction set that is being compiled: table.cpp gathers
// them into its KernelTable. What each does is said in kernels.h.
#pragma once
#include "kernels.h"

namespace headrace::HEADRACE_ISA {

void quantize_rows(const float* x, ptrdiff_t stride, int rows, int k, int8_t* q, float* scale, float* scaled_sum);
void linear_float(const float* x, ptrdiff_t stride, int rows, const PackedMatrix& w, const LinearOut& out,
                  int tile_begin, int tile_end);
void linear_quantized(const QuantizedRows& x, int rows, const PackedMatrix& w, const LinearOut& out, int tile_begin,
                      int tile_end);
void embed_row(const PackedMatrix& w, int index, float scale, float* out);
void rms_norm(const float* x, float* y, const float* weight, int width, float eps);
void gated_activation(const float* gate, const float* up, float* out, int width, Activation activation);
void softcap(float* x, int width, float cap);
void add_scaled(const float* x, float* y, int width, float scale);
void rope(float* x, int heads, int head_dim, int rotary_dim, const float* cos_sin, bool interleaved);
void kv_write(const KVView& kv, int kv_heads, int block, int slot, const float* k, const float* v);
void attention(const KVView& kv, const AttentionShape& shape, const Entry& entry, int row_begin, int row_end,
               int head_begin, int head_end, const float* q, ptrdiff_t q_stride, float* out, ptrdiff_t out_stride,
               void* scratch);
void attention_run(const KVView& kv, const AttentionShape& shape, const Entry& entry, int row, int head, int split,
                   const float* q, ptrdiff_t q_stride, float* partial, void* scratch);
void attention_merge(int v_dim, const float* partials, ptrdiff_t run_stride, int runs, float* out, void* scratch);
void sample_row(const SamplingRows& rows, int row, const SamplingScratch& scratch);
int64_t ceiling_int8(int64_t rounds);
int64_t ceiling_float(int64_t rounds);
void ceiling_read(const float* p, ptrdiff_t count);

}  // namespace headrace::HEADRACE_ISA
