// What the processor does at best, for Python: ops/cpu_ceilings.py times these calls.
#include <nanobind/ndarray.h>

#include <atomic>

#include "bindings.h"
#include "thread_pool.h"

namespace nb = nanobind;

namespace headrace {

namespace {

constexpr ptrdiff_t kPiece = 1 << 18;  // floats that a thread reads at a time

// Operations done by all threads, each `rounds` rounds of its own.
int64_t on_every_thread(ThreadPool& pool, int64_t (*work)(int64_t), int64_t rounds) {
  std::atomic<int64_t> operations{0};
  pool.run([&](int) { operations.fetch_add(work(rounds)); });
  return operations;
}

}  // namespace

void bind_ceilings(nb::module_& m) {
  m.def("ceiling_int8",
        [](const Kernels& kernels, ThreadPool& pool, int64_t rounds) {
          return on_every_thread(pool, kernels.table->ceiling_int8, rounds);
        },
        nb::arg("kernels"), nb::arg("pool"), nb::arg("rounds"), nb::call_guard<nb::gil_scoped_release>(),
        "int8 operations done: dot products of activations and weights, as linear layers make them.");
  m.def("ceiling_float",
        [](const Kernels& kernels, ThreadPool& pool, int64_t rounds) {
          return on_every_thread(pool, kernels.table->ceiling_float, rounds);
        },
        nb::arg("kernels"), nb::arg("pool"), nb::arg("rounds"), nb::call_guard<nb::gil_scoped_release>(),
        "float32 operations done: fused multiply-adds.");
  m.def("ceiling_read",
        [](const Kernels& kernels, ThreadPool& pool, nb::ndarray<const float, nb::ndim<1>, nb::c_contig> array) {
          const float* data = array.data();
          const ptrdiff_t size = static_cast<ptrdiff_t>(array.shape(0));
          nb::gil_scoped_release release;
          pool.parallel_for(static_cast<int>(size / kPiece),
                            [&](int piece) { kernels.table->ceiling_read(data + piece * kPiece, kPiece); });
          return size / kPiece * kPiece * static_cast<ptrdiff_t>(sizeof(float));
        },
        nb::arg("kernels"), nb::arg("pool"), nb::arg("array"), "Bytes read.");
  m.def("barriers",
        [](ThreadPool& pool, int64_t rounds) {
          pool.run([&](int) {
            for (int64_t round = 0; round < rounds; ++round) pool.barrier();
          });
          return rounds;
        },
        nb::arg("pool"), nb::arg("rounds"), nb::call_guard<nb::gil_scoped_release>(),
        "Times that all threads waited for each other.");
}

}  // namespace headrace
