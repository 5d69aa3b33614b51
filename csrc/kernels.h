// The contract between programs and kernels: plain structs, and one table of function pointers per instruction
// set. Kernel sources are compiled once per instruction set (see CMakeLists.txt) in a namespace of their own;
// dispatch.cpp picks a table at run time.
//
// Every kernel computes the rows (and, where it says so, the columns) it is given and nothing else, and a row's
// result never depends on which other rows, columns or threads were asked for: this is what "no token may change"
// rests on.
#pragma once
#include <cstddef>
#include <cstdint>

namespace headrace {

struct SamplingRows;     // sampling.h
struct SamplingScratch;

constexpr int kActivationGroup = 32;  // values along k that share one int8 scale
constexpr int kTile = 16;             // outputs in one packed tile, on every instruction set
constexpr int kSplit = 512;           // key positions in one run of attention (ops/program.py SPLIT)
constexpr int kAttentionQueries = 24; // queries (row, head) that one pass of attention takes together, at most
constexpr int kQueryTile = 6;         // of those, as many as share what is read into registers
constexpr int kAttentionScores = kSplit + 16;  // floats of scratch for one query's scores

enum class Scheme : int { F32 = 0, BF16 = 1, Q8 = 2, Q4 = 3 };
enum class KVType : int { BF16 = 0, F32 = 1, I8 = 2 };
enum class Activation : int { Silu = 0, GeluTanh = 1 };

// A weight matrix [n, k], packed in tiles of kTile outputs; n is padded to a multiple of kTile with zeros.
//   F32   data float  [tile][k][16]                      BF16  the same with uint16_t
//   Q8    data int8   [tile][k/4][16][4]                  scale [tile][k/group][16]
//   Q4    data uint8  [tile][k/8][16][4]: low nibble is k-quad 2j, high nibble k-quad 2j+1 of the run of 8
//                                                          scale, minimum [tile][k/group][16]
// scale and minimum are float, or IEEE half (uint16_t) where half_scales: packing chooses half if it holds every one
// of them exactly, as it does for the usual file formats, because decoding is bound by the bytes it reads.
// data, scale and minimum start at multiples of 64 bytes.
struct PackedMatrix {
  Scheme scheme;
  int n, k, group;
  bool half_scales;
  const void* data;
  const void* scale;
  const void* minimum;
};

// Activations quantized along k: q int8 [rows][k], scale float [rows][k/32], and scaled_sum float [rows][k/32]
// (scale * sum of q in the run), which weights with a minimum need.
struct QuantizedRows {
  const int8_t* q;
  const float* scale;
  const float* scaled_sum;
  int k;
  uint64_t version = 0;  // other than 0: these rows and no others have it, so what was made of them may be kept
};

struct LinearOut {
  float* y;            // [rows][stride]
  ptrdiff_t stride;
  const float* bias;   // [n] or null
  bool accumulate;     // y += scale * (x W^T + bias) instead of y = x W^T + bias
  float scale;
  int k_segment;       // partial sums over runs of this many k, added in order; a multiple of group and 32
};

// One run of rows of one sequence.
struct Entry {
  int row, count;          // flat rows row .. row+count-1
  int start;               // position of the first row
  const int32_t* blocks;   // block table of the sequence
};

// The units of one layer of one KV group: unit(block, head) = base + block*block_bytes + head*head_bytes.
// Inside a unit: core/kv_layout.py.
struct KVView {
  uint8_t* base;           // already offset to the layer
  ptrdiff_t block_bytes, head_bytes, v_offset, k_scale_offset, v_scale_offset;
  int block_size, k_dim, v_dim;
  KVType type;
};

struct AttentionShape {
  int heads, kv_heads;
  float scale, softcap;    // softcap 0: none
  int window;              // 0: none
};

// Floats of one query's partial result: v_dim rounded up to 16 sums, the maximum, the sum of weights.
constexpr int attention_partial_width(int v_dim) { return (v_dim + 15) / 16 * 16 + 16; }

// Scratch of one thread inside attention kernels, 64-byte aligned.
constexpr size_t attention_scratch_bytes(int k_dim, int v_dim) {
  const size_t padded_v = (v_dim + 15) / 16 * 16;
  return sizeof(float) * (kAttentionQueries * (k_dim + kAttentionScores + 2 * padded_v) + 64 * k_dim + 16 * padded_v);
}

struct KernelTable {
  const char* name;

  // q, scale, scaled_sum of rows [0, rows): round to nearest even, scale = max|x| / 127 over each run of 32.
  void (*quantize_rows)(const float* x, ptrdiff_t stride, int rows, int k, int8_t* q, float* scale, float* scaled_sum);
  // Outputs of tiles [tile_begin, tile_end) for rows [0, rows).
  void (*linear_float)(const float* x, ptrdiff_t stride, int rows, const PackedMatrix& w, const LinearOut& out,
                       int tile_begin, int tile_end);
  void (*linear_quantized)(const QuantizedRows& x, int rows, const PackedMatrix& w, const LinearOut& out,
                           int tile_begin, int tile_end);
  // out[0..k) = scale * row `index` of w.
  void (*embed_row)(const PackedMatrix& w, int index, float scale, float* out);

  void (*rms_norm)(const float* x, float* y, const float* weight, int width, float eps);
  void (*gated_activation)(const float* gate, const float* up, float* out, int width, Activation activation);
  void (*softcap)(float* x, int width, float cap);
  // y += scale * x, fused.
  void (*add_scaled)(const float* x, float* y, int width, float scale);
  // Rotate `heads` heads of head_dim in place. cos_sin float [rotary_dim/2][2].
  void (*rope)(float* x, int heads, int head_dim, int rotary_dim, const float* cos_sin, bool interleaved);
  // Store one token's k and v (all KV heads) at `slot` of `block`.
  void (*kv_write)(const KVView& kv, int kv_heads, int block, int slot, const float* k, const float* v);
  // Rows [row_begin, row_end) of the entry (0 is its first), KV heads [head_begin, head_end) with all their query heads.
  // q [rows][q_stride], out [rows][out_stride], both addressed by flat row. scratch: attention_scratch_bytes().
  void (*attention)(const KVView& kv, const AttentionShape& shape, const Entry& entry, int row_begin, int row_end,
                    int head_begin, int head_end, const float* q, ptrdiff_t q_stride, float* out,
                    ptrdiff_t out_stride, void* scratch);
  // The same for one row and KV head in pieces: its partial result over run `split` of keys (positions split*kSplit
  // on, which the row must reach) for each query head of the KV head, [heads / kv_heads][attention_partial_width];
  // then, for one query head, the partial results of its runs, `run_stride` floats apart, merged in order.
  void (*attention_run)(const KVView& kv, const AttentionShape& shape, const Entry& entry, int row, int head, int split,
                        const float* q, ptrdiff_t q_stride, float* partial, void* scratch);
  void (*attention_merge)(int v_dim, const float* partials, ptrdiff_t run_stride, int runs, float* out, void* scratch);
  // Sample or score one logit row.
  void (*sample_row)(const SamplingRows& rows, int row, const SamplingScratch& scratch);

  // Work that only the processor limits: operations done in so many rounds; floats read.
  int64_t (*ceiling_int8)(int64_t rounds);
  int64_t (*ceiling_float)(int64_t rounds);
  void (*ceiling_read)(const float* p, ptrdiff_t count);
};

}  // namespace headrace
