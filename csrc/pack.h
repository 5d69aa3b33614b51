// Packing: from the neutral layout of a weight matrix (ops/matrix.py) to the tiles that kernels read (kernels.h), done
// once when a model is loaded. A WeightStore owns the packed bytes of a whole model.
#pragma once
#include <memory>
#include <vector>

#include "kernels.h"

namespace headrace {

// A matrix as ops/matrix.py lays it out; scale and minimum are null where the scheme has none.
struct NeutralMatrix {
  Scheme scheme;
  int n, k, group;
  const void* data;
  const float* scale;
  const float* minimum;
};

constexpr size_t kPackAlign = 64;  // of each part of a packed matrix

// Memory in few large pieces, on huge pages where the system gives them: decoding streams all of it every step.
class WeightStore {
 public:
  WeightStore() = default;
  WeightStore(const WeightStore&) = delete;
  WeightStore& operator=(const WeightStore&) = delete;

  // Uninitialized room for a matrix; it lives as long as the store. half_scales as scales_fit_half() says.
  PackedMatrix reserve(const NeutralMatrix& from, bool half_scales);
  size_t nbytes() const { return nbytes_; }

 private:
  struct Free {
    void operator()(void* p) const;
  };
  uint8_t* take(size_t size);
  std::vector<std::unique_ptr<uint8_t, Free>> chunks_;
  uint8_t* next_ = nullptr;
  size_t left_ = 0, nbytes_ = 0;
};

inline int num_tiles(int n) { return (n + kTile - 1) / kTile; }

// Bytes of a packed matrix's data, and of its scale (its minimum has as many).
size_t packed_data_bytes(const PackedMatrix& m);
size_t packed_scale_bytes(const PackedMatrix& m);

// Whether IEEE half holds scale and minimum of outputs [begin, end) exactly.
bool scales_fit_half(const NeutralMatrix& from, int begin, int end);

// Tiles [tile_begin, tile_end), padding included. Different ranges may be packed by different threads.
void pack_tiles(const NeutralMatrix& from, const PackedMatrix& to, int tile_begin, int tile_end);

}  // namespace headrace
