// Ops of mixtures of experts, and the sum with the residual stream, as ops/program.py describes them.
#pragma once
#include "program.h"

namespace headrace {

struct ExpertShape {
  int experts, taken;
  bool shared_input;  // every expert of a row reads the whole row, not a run of its own
  int column;         // of the output, where the first expert's results begin
  int k_segment;
};

void add_add(Program& program, int input, int output, int width, float scale, int quantize_width);
void add_route_experts(Program& program, int input, int output, int experts, int taken, bool normalize);
void add_expert_linear(Program& program, int input, int output, int routes, const PackedMatrix& matrix,
                       const ExpertShape& shape);
void add_mix_experts(Program& program, int input, int output, int routes, int width, int taken, float scale);

}  // namespace headrace
