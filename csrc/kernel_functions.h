// Declarations of every kernel, in the namespace of the instruction set that is being compiled: table.cpp gathers
// them into its KernelTable. What each does is said in kernels.h.
#pragma once
#include "kernels.h"

namespace headrace::HEADRACE_ISA {

void rms_norm(const float* x, float* y, const float* weight, int width, float eps);
void gated_activation(const float* gate_up, float* out, int width, Activation activation);
void softcap(float* x, int width, float cap);
void rope(float* x, int heads, int head_dim, int rotary_dim, const float* cos_sin, bool interleaved);
void kv_write(const KVView& kv, int kv_heads, int block, int slot, const float* k, const float* v);

}  // namespace headrace::HEADRACE_ISA
