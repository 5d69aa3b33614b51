// Aligned memory that only grows, for what a step needs beside its buffers.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <new>

namespace headrace {

class Scratch {
 public:
  Scratch() = default;
  ~Scratch() { std::free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // At least `bytes`; what was there is lost when it grows.
  void reserve(size_t bytes) {
    if (bytes <= size_) return;
    std::free(data_);
    size_ = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    data_ = std::aligned_alloc(kAlignment, size_);
    if (data_ == nullptr) {
      size_ = 0;
      throw std::bad_alloc();
    }
  }
  float* data() const { return static_cast<float*>(data_); }
  size_t size() const { return size_; }

 private:
  static constexpr size_t kAlignment = 64;
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace headrace
