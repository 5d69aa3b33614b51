// How the attention of one step is cut into tasks: the same for all layers of a KV group, so it is made once a step.
#pragma once
#include <vector>

#include "kernels.h"
#include "scratch.h"

namespace headrace {

struct Step;

struct AttentionPlan {
  // Rows [begin, end) of one entry, taken together for one KV head.
  struct Tile {
    int entry, begin, end;
  };
  // Run `split` of the keys that one row of an entry reaches.
  struct KeyRun {
    int entry, row, split;
  };
  // A row taken in pieces: key_runs[first] .. key_runs[first + count - 1].
  struct Pieces {
    int entry, row, first, count;
  };

  int group, heads, kv_heads, v_dim, window;
  KVType type;
  std::vector<Tile> tiles;
  std::vector<KeyRun> key_runs;  // empty unless rows are taken in pieces
  std::vector<Pieces> pieces;
  Scratch partials;              // [key run][head][attention_partial_width]

  AttentionPlan(int group_, const AttentionShape& shape, int v_dim_, KVType type_)
      : group(group_), heads(shape.heads), kv_heads(shape.kv_heads), v_dim(v_dim_), window(shape.window), type(type_) {}

  bool serves(int group_, const AttentionShape& shape, int v_dim_) const {
    return group == group_ && heads == shape.heads && kv_heads == shape.kv_heads && v_dim == v_dim_ &&
           window == shape.window;
  }
  int shared() const { return heads / kv_heads; }
  float* partial(int key_run, int head) const {
    return partials.data() + (static_cast<ptrdiff_t>(key_run) * heads + head) * attention_partial_width(v_dim);
  }
  ptrdiff_t key_run_stride() const { return static_cast<ptrdiff_t>(heads) * attention_partial_width(v_dim); }

  // Room for any step of at most so many rows and positions.
  void reserve(int rows, int positions, int threads);
  void prepare(const Step& step);

 private:
  void cut_tiles(const Step& step, int rows_per_tile);
};

}  // namespace headrace
