// Programs for Python: ops/cpu.py adds buffers, groups and ops with every array bound, and runs steps. The arrays
// must outlive the program; CpuProgram holds them.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "program_experts.h"
#include "program_ops.h"

namespace nb = nanobind;

namespace headrace {

namespace {

template <class T>
using Array1 = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Array2 = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using Array3 = nb::ndarray<T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

const float* optional_data(const std::optional<Array1<const float>>& array) {
  return array ? array->data() : nullptr;
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::enum_<KVType>(m, "KVType").value("BF16", KVType::BF16).value("F32", KVType::F32).value("I8", KVType::I8);
  nb::enum_<Activation>(m, "Activation")
      .value("SILU", Activation::Silu)
      .value("GELU_TANH", Activation::GeluTanh);

  nb::class_<HeadShape>(m, "HeadShape", "Which layer an attention op belongs to, and its heads.")
      .def("__init__",
           [](HeadShape* self, int group, int layer, int heads, int kv_heads, int head_dim, int v_head_dim) {
             new (self) HeadShape{group, layer, heads, kv_heads, head_dim, v_head_dim};
           },
           nb::arg("group"), nb::arg("layer"), nb::arg("heads"), nb::arg("kv_heads"), nb::arg("head_dim"),
           nb::arg("v_head_dim"));

  nb::class_<Program>(m, "Program", "A decoder with every pointer bound.")
      .def("__init__",
           [](Program* self, const Kernels& kernels, ThreadPool& pool, Array1<const int32_t> tokens,
              Array1<const int32_t> positions, Array1<const int32_t> entry_slot, Array1<const int32_t> entry_row,
              Array1<const int32_t> entry_start, Array1<const int32_t> entry_count, Array1<const int32_t> logit_rows,
              int num_slots, int vocab_size) {
             new (self) Program(*kernels.table, pool,
                                {tokens.data(), positions.data(), entry_slot.data(), entry_row.data(),
                                 entry_start.data(), entry_count.data(), logit_rows.data(),
                                 static_cast<int>(tokens.shape(0)), static_cast<int>(entry_slot.shape(0)),
                                 static_cast<int>(logit_rows.shape(0)), num_slots, vocab_size});
           },
           nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::arg("kernels"), nb::arg("pool"), nb::arg("tokens"),
           nb::arg("positions"), nb::arg("entry_slot"), nb::arg("entry_row"), nb::arg("entry_start"),
           nb::arg("entry_count"), nb::arg("logit_rows"), nb::arg("num_slots"), nb::arg("vocab_size"))
      .def("add_buffer",
           [](Program& self, Array2<float> data, bool logits, std::optional<Array2<int8_t>> q,
              std::optional<Array2<float>> scale, std::optional<Array2<float>> scaled_sum) {
             Buffer buffer{data.data(), static_cast<ptrdiff_t>(data.shape(1)), logits};
             if (q && scale && scaled_sum) {
               buffer.q = q->data();
               buffer.scale = scale->data();
               buffer.scaled_sum = scaled_sum->data();
             }
             return self.add_buffer(buffer);
           },
           nb::arg("data"), nb::arg("logits"), nb::arg("q") = nb::none(), nb::arg("scale") = nb::none(),
           nb::arg("scaled_sum") = nb::none(), "Index of a buffer; q, scale, scaled_sum hold its rows in int8.")
      .def("add_group",
           [](Program& self, Array1<uint8_t> cache, Array2<const int32_t> table, KVType type, int block_size,
              int kv_heads, int k_dim, int v_dim, ptrdiff_t unit_bytes, ptrdiff_t head_bytes, ptrdiff_t block_bytes,
              ptrdiff_t v_offset, ptrdiff_t k_scale_offset, ptrdiff_t v_scale_offset, int window) {
             return self.add_group({cache.data(), block_bytes, head_bytes, unit_bytes, v_offset, k_scale_offset,
                                    v_scale_offset, static_cast<int>(cache.shape(0) / block_bytes), block_size,
                                    kv_heads, k_dim, v_dim, type, table.data(), static_cast<int>(table.shape(1)),
                                    window});
           },
           nb::kw_only(), nb::arg("cache"), nb::arg("table"), nb::arg("type"), nb::arg("block_size"),
           nb::arg("kv_heads"), nb::arg("k_dim"), nb::arg("v_dim"), nb::arg("unit_bytes"), nb::arg("head_bytes"),
           nb::arg("block_bytes"), nb::arg("v_offset"), nb::arg("k_scale_offset"), nb::arg("v_scale_offset"),
           nb::arg("window"))
      .def("add_embed",
           [](Program& self, int output, const PackedMatrix& matrix, float scale) {
             add_embed(self, output, matrix, scale);
           },
           nb::arg("output"), nb::arg("matrix"), nb::arg("scale"))
      .def("add_rms_norm",
           [](Program& self, int input, int output, Array1<const float> weight, int begin, int end, float eps,
              int quantize_width) {
             add_rms_norm(self, input, output, weight.data(), {begin, end, static_cast<int>(weight.shape(0)), eps},
                          quantize_width);
           },
           nb::arg("input"), nb::arg("output"), nb::arg("weight"), nb::arg("begin"), nb::arg("end"), nb::arg("eps"),
           nb::arg("quantize_width"))
      .def("add_quantize",
           [](Program& self, int buffer, int quantize_width) { add_quantize(self, buffer, quantize_width); },
           nb::arg("buffer"), nb::arg("quantize_width"))
      .def("add_linear",
           [](Program& self, int input, int output, const PackedMatrix& matrix,
              std::optional<Array1<const float>> bias, bool accumulate, float scale, int k_segment) {
             add_linear(self, input, output, matrix, optional_data(bias), accumulate, scale, k_segment);
           },
           nb::arg("input"), nb::arg("output"), nb::arg("matrix"), nb::arg("bias").none(), nb::arg("accumulate"),
           nb::arg("scale"), nb::arg("k_segment"))
      .def("add_rope_kv",
           [](Program& self, int qkv, const HeadShape& shape, std::optional<Array3<const float>> table,
              bool interleaved) {
             if (!table) return add_rope_kv(self, qkv, shape, {nullptr, 0, interleaved});
             self.add_rope_table(static_cast<int>(table->shape(0)));
             add_rope_kv(self, qkv, shape, {table->data(), static_cast<int>(table->shape(1)) * 2, interleaved});
           },
           nb::arg("qkv"), nb::arg("shape"), nb::arg("table").none(), nb::arg("interleaved"))
      .def("add_attention",
           [](Program& self, int qkv, int output, const HeadShape& shape, float scale, float softcap, int window,
              int quantize_width) {
             add_attention(self, qkv, output, shape, {shape.heads, shape.kv_heads, scale, softcap, window},
                           quantize_width);
           },
           nb::arg("qkv"), nb::arg("output"), nb::arg("shape"), nb::arg("scale"), nb::arg("softcap"),
           nb::arg("window"), nb::arg("quantize_width"))
      .def("add_gated_activation",
           [](Program& self, int input, int output, int width, Activation activation, int quantize_width) {
             add_gated_activation(self, input, output, width, activation, quantize_width);
           },
           nb::arg("input"), nb::arg("output"), nb::arg("width"), nb::arg("activation"), nb::arg("quantize_width"))
      .def("add_add",
           [](Program& self, int input, int output, int width, float scale, int quantize_width) {
             add_add(self, input, output, width, scale, quantize_width);
           },
           nb::arg("input"), nb::arg("output"), nb::arg("width"), nb::arg("scale"), nb::arg("quantize_width"))
      .def("add_route_experts",
           [](Program& self, int input, int output, int experts, int taken, bool normalize) {
             add_route_experts(self, input, output, experts, taken, normalize);
           },
           nb::arg("input"), nb::arg("output"), nb::arg("experts"), nb::arg("taken"), nb::arg("normalize"))
      .def("add_expert_linear",
           [](Program& self, int input, int output, int routes, const PackedMatrix& matrix, int experts, int taken,
              bool shared_input, int column, int k_segment) {
             if (experts < 1 || matrix.n % experts || matrix.n / experts % kTile)
               throw std::invalid_argument("experts must each have the same number of rows, a multiple of 16");
             add_expert_linear(self, input, output, routes, matrix, {experts, taken, shared_input, column, k_segment});
           },
           nb::arg("input"), nb::arg("output"), nb::arg("routes"), nb::arg("matrix"), nb::arg("experts"),
           nb::arg("taken"), nb::arg("shared_input"), nb::arg("column"), nb::arg("k_segment"))
      .def("add_mix_experts",
           [](Program& self, int input, int output, int routes, int width, int taken, float scale) {
             add_mix_experts(self, input, output, routes, width, taken, scale);
           },
           nb::arg("input"), nb::arg("output"), nb::arg("routes"), nb::arg("width"), nb::arg("taken"),
           nb::arg("scale"))
      .def("add_select_rows",
           [](Program& self, int input, int output, int width, int quantize_width) {
             add_select_rows(self, input, output, width, quantize_width);
           },
           nb::arg("input"), nb::arg("output"), nb::arg("width"), nb::arg("quantize_width"))
      .def("add_softcap",
           [](Program& self, int buffer, int width, float cap) { add_softcap(self, buffer, width, cap); },
           nb::arg("buffer"), nb::arg("width"), nb::arg("cap"))
      .def("run", &Program::run, nb::arg("rows"), nb::arg("entries"), nb::arg("logits"),
           nb::call_guard<nb::gil_scoped_release>(),
           "Compute one step with the GIL released. ValueError, before anything is computed, for an index out of range.")
      .def_prop_rw("profiling", &Program::profiling, &Program::set_profiling)
      .def_prop_ro("op_names", &Program::op_names)
      .def_prop_ro("op_times", &Program::op_times, "Nanoseconds of each op in the last step, if profiling was on.");
}

}  // namespace headrace
