// The tasks of one op, dealt to threads in runs of neighbours. A thread works through its own run from the front, so that
// it reads the memory of neighbouring tasks in one stream, and then takes from the ends of the others' runs, so that
// all are through at about the same time even where one is held up.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

namespace headrace {

class TaskShares {
 public:
  explicit TaskShares(int threads) : shares_(threads) {}

  // Give `worker` its share of [0, tasks). No task may be taken until every thread has its own.
  void deal(int tasks, int worker) {
    const auto bound = [&](int64_t w) { return static_cast<uint32_t>(tasks * w / static_cast<int64_t>(shares_.size())); };
    shares_[worker].left.store(pack(bound(worker), bound(worker + 1)), std::memory_order_relaxed);
  }

  // A task that nobody else has or gets; -1 if there is none left.
  int take(int worker) {
    const int threads = static_cast<int>(shares_.size());
    for (int i = 0, from = worker; i < threads; ++i, from = from + 1 == threads ? 0 : from + 1) {
      std::atomic<uint64_t>& left = shares_[from].left;
      uint64_t seen = left.load(std::memory_order_relaxed);
      for (;;) {
        const uint32_t begin = static_cast<uint32_t>(seen), end = static_cast<uint32_t>(seen >> 32);
        if (begin >= end) break;
        const uint64_t rest = i == 0 ? pack(begin + 1, end) : pack(begin, end - 1);
        if (left.compare_exchange_weak(seen, rest, std::memory_order_relaxed))
          return static_cast<int>(i == 0 ? begin : end - 1);
      }
    }
    return -1;
  }

 private:
  struct alignas(64) Share {
    std::atomic<uint64_t> left{0};  // first task | end << 32
  };
  static uint64_t pack(uint32_t begin, uint32_t end) { return static_cast<uint64_t>(end) << 32 | begin; }
  std::vector<Share> shares_;
};

}  // namespace headrace
