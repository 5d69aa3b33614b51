// Python's view of packed weights: a WeightStore packs matrices, programs take the PackedMatrix. linear() and
// embed_row() run one kernel on its own, for tests and measurements.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <stdexcept>

#include "bindings.h"
#include "pack.h"
#include "thread_pool.h"

namespace nb = nanobind;

namespace headrace {

namespace {

using Bytes = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutRows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

Scheme scheme_of(const std::string& name) {
  if (name == "f32") return Scheme::F32;
  if (name == "bf16") return Scheme::BF16;
  if (name == "q8") return Scheme::Q8;
  if (name == "q4") return Scheme::Q4;
  throw std::invalid_argument("scheme must be f32, bf16, q8 or q4, got '" + name + "'");
}

void require(bool ok, const char* message) {
  if (!ok) throw std::invalid_argument(message);
}

NeutralMatrix neutral(const std::string& scheme_name, int n, int k, int group, const Bytes& data,
                      const std::optional<Floats>& scale, const std::optional<Floats>& minimum) {
  const Scheme scheme = scheme_of(scheme_name);
  const bool quantized = scheme == Scheme::Q8 || scheme == Scheme::Q4;
  require(n > 0 && k > 0, "n and k must be positive");
  const size_t values = static_cast<size_t>(n) * k;
  const size_t bytes = scheme == Scheme::F32 ? 4 * values : scheme == Scheme::BF16 ? 2 * values
                       : scheme == Scheme::Q8 ? values : values / 2;
  require(data.nbytes() == bytes, "data must hold n * k values of its scheme");
  require(scale.has_value() == quantized, "scale belongs to q8 and q4, and to no other scheme");
  require(minimum.has_value() == (scheme == Scheme::Q4), "minimum belongs to q4, and to no other scheme");
  if (!quantized) return {scheme, n, k, 0, data.data(), nullptr, nullptr};
  require(group > 0 && group % kActivationGroup == 0 && k % group == 0, "group must be a multiple of 32 that divides k");
  require(scale->size() == values / group && (!minimum || minimum->size() == values / group),
          "scale and minimum must hold n * k / group values");
  return {scheme, n, k, group, data.data(), scale->data(), minimum ? minimum->data() : nullptr};
}

PackedMatrix pack(WeightStore& store, ThreadPool& pool, const NeutralMatrix& from) {
  constexpr int kTiles = 16;  // in one chunk of work
  const int tiles = num_tiles(from.n), chunks = (tiles + kTiles - 1) / kTiles;
  std::atomic<bool> half{from.scale != nullptr};
  if (half) {
    pool.parallel_for(chunks, [&](int chunk) {
      const int begin = chunk * kTiles * kTile, end = begin + kTiles * kTile;
      if (half && !scales_fit_half(from, begin, end < from.n ? end : from.n)) half = false;
    });
  }
  const PackedMatrix to = store.reserve(from, half);
  pool.parallel_for(chunks, [&](int chunk) {
    const int begin = chunk * kTiles, end = begin + kTiles;
    pack_tiles(from, to, begin, end < tiles ? end : tiles);
  });
  return to;
}

std::string scheme_name(Scheme scheme) {
  switch (scheme) {
    case Scheme::F32: return "f32";
    case Scheme::BF16: return "bf16";
    case Scheme::Q8: return "q8";
    case Scheme::Q4: return "q4";
  }
  return "";
}

// A matrix that was packed before, over the caller's memory.
PackedMatrix adopt(const std::string& scheme_text, int n, int k, int group, bool half_scales, const Bytes& data,
                   const std::optional<Bytes>& scale, const std::optional<Bytes>& minimum) {
  const Scheme scheme = scheme_of(scheme_text);
  const bool quantized = scheme == Scheme::Q8 || scheme == Scheme::Q4;
  require(n > 0 && k > 0, "n and k must be positive");
  require(quantized ? group > 0 && group % kActivationGroup == 0 && k % group == 0 : group == 0 && !half_scales,
          "group must be a multiple of 32 that divides k, and 0 where the scheme has none");
  require(scale.has_value() == quantized, "scale belongs to q8 and q4, and to no other scheme");
  require(minimum.has_value() == (scheme == Scheme::Q4), "minimum belongs to q4, and to no other scheme");
  PackedMatrix m{scheme, n, k, group, half_scales, data.data(), scale ? scale->data() : nullptr,
                 minimum ? minimum->data() : nullptr};
  require(data.nbytes() == packed_data_bytes(m), "data must have the size of the packed matrix");
  for (const auto& part : {scale, minimum})
    require(!part || part->nbytes() == packed_scale_bytes(m), "scale and minimum must have the size of the packed ones");
  for (const void* part : {m.data, m.scale, m.minimum})
    require(reinterpret_cast<uintptr_t>(part) % kPackAlign == 0, "packed memory must be aligned to 64 bytes");
  return m;
}

// Read-only views of a packed matrix's memory: data, then scale and minimum where the scheme has them.
nb::list parts(nb::handle self) {
  const PackedMatrix& m = nb::cast<const PackedMatrix&>(self);
  nb::list views;
  const auto add = [&](const void* memory, size_t size) {
    using View = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>;
    if (memory) views.append(View(static_cast<const uint8_t*>(memory), {size}, self));
  };
  add(m.data, packed_data_bytes(m));
  add(m.scale, packed_scale_bytes(m));
  add(m.minimum, packed_scale_bytes(m));
  return views;
}

void linear(const Kernels& kernels, Rows x, const PackedMatrix& w, OutRows y, const std::optional<Floats>& bias,
            bool accumulate, float scale, int k_segment, int tile_begin, int tile_end) {
  const int rows = static_cast<int>(x.shape(0)), k = static_cast<int>(x.shape(1)), tiles = num_tiles(w.n);
  require(k == w.k && static_cast<int>(y.shape(0)) == rows && static_cast<int>(y.shape(1)) == w.n,
          "x must be [rows, k] and y [rows, n]");
  require(!bias || static_cast<int>(bias->size()) == w.n, "bias must hold n values");
  if (tile_end < 0) tile_end = tiles;
  require(0 <= tile_begin && tile_begin <= tile_end && tile_end <= tiles, "tiles must lie in the matrix");
  const LinearOut out{y.data(), w.n, bias ? bias->data() : nullptr, accumulate, scale, k_segment};
  if (w.scheme == Scheme::F32 || w.scheme == Scheme::BF16) {
    kernels.table->linear_float(x.data(), k, rows, w, out, tile_begin, tile_end);
    return;
  }
  std::vector<int8_t> q(static_cast<size_t>(rows) * k);
  std::vector<float> scales(q.size() / kActivationGroup), sums(q.size() / kActivationGroup);
  kernels.table->quantize_rows(x.data(), k, rows, k, q.data(), scales.data(), sums.data());
  kernels.table->linear_quantized({q.data(), scales.data(), sums.data(), k}, rows, w, out, tile_begin, tile_end);
}

}  // namespace

void bind_weights(nb::module_& m) {
  nb::class_<PackedMatrix>(m, "PackedMatrix", "A matrix in a WeightStore, in the layout that kernels read.")
      .def_ro("n", &PackedMatrix::n)
      .def_ro("k", &PackedMatrix::k)
      .def_ro("group", &PackedMatrix::group)
      .def_prop_ro("scheme", [](const PackedMatrix& m) { return scheme_name(m.scheme); })
      .def_prop_ro("parts", &parts, "Its memory, read-only: data, then scale and minimum where the scheme has them.")
      .def_prop_ro("quantized", [](const PackedMatrix& m) { return m.scheme == Scheme::Q8 || m.scheme == Scheme::Q4; })
      .def_ro("half_scales", &PackedMatrix::half_scales, "Whether scale and minimum are kept as IEEE half, exactly.");

  nb::class_<WeightStore>(m, "WeightStore", "Owns the packed weights of a model.")
      .def(nb::init<>())
      .def_prop_ro("nbytes", &WeightStore::nbytes)
      .def(
          "pack",
          [](WeightStore& self, ThreadPool& pool, const std::string& scheme, int n, int k, int group, Bytes data,
             std::optional<Floats> scale, std::optional<Floats> minimum) {
            const NeutralMatrix from = neutral(scheme, n, k, group, data, scale, minimum);
            nb::gil_scoped_release release;
            return pack(self, pool, from);
          },
          nb::arg("pool"), nb::arg("scheme"), nb::arg("n"), nb::arg("k"), nb::arg("group"), nb::arg("data"),
          nb::arg("scale").none(), nb::arg("minimum").none(), nb::keep_alive<0, 1>(),
          "Pack a matrix that lies as ops/matrix.py says; the source is not needed afterwards. The result keeps "
          "the store alive. ValueError for sizes that do not fit each other.");

  m.def("adopt", &adopt, nb::arg("scheme"), nb::arg("n"), nb::arg("k"), nb::arg("group"), nb::arg("half_scales"),
        nb::arg("data"), nb::arg("scale").none() = nb::none(), nb::arg("minimum").none() = nb::none(),
        nb::keep_alive<0, 6>(), nb::keep_alive<0, 7>(), nb::keep_alive<0, 8>(),
        "A matrix over memory that holds the parts of one packed before. ValueError for sizes that do not fit it.");

  m.def("linear", &linear, nb::arg("kernels"), nb::arg("x"), nb::arg("matrix"), nb::arg("y"),
        nb::arg("bias").none() = nb::none(), nb::arg("accumulate") = false, nb::arg("scale") = 1.0f,
        nb::arg("k_segment") = 0, nb::arg("tile_begin") = 0, nb::arg("tile_end") = -1,
        "Outputs of some tiles of 16 for all rows, on this thread.");
  m.def(
      "embed_row",
      [](const Kernels& kernels, const PackedMatrix& w, int index, float scale,
         nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu> out) {
        require(0 <= index && index < w.n && static_cast<int>(out.size()) == w.k, "index must lie in 0..n-1, out hold k");
        kernels.table->embed_row(w, index, scale, out.data());
      },
      nb::arg("kernels"), nb::arg("matrix"), nb::arg("index"), nb::arg("scale"), nb::arg("out"));
}

}  // namespace headrace
