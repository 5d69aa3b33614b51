#include "thread_pool.h"

#include <chrono>
#include <stdexcept>
#include <string>
#include <system_error>

#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#endif

namespace headrace {

namespace {

// Between the bodies of two steps lies some Python; to wake a sleeper costs more than to wait for it here.
constexpr auto kSpinBeforeSleep = std::chrono::microseconds(1000);
constexpr auto kSpinBeforeYield = std::chrono::microseconds(20);
constexpr int kPausesBeforeYield = 2000;  // in a barrier: some 20 us, then let others have the core

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void pin(std::thread& thread, int cpu) {
#ifdef __linux__
  cpu_set_t* const only = CPU_ALLOC(cpu + 1);
  const size_t size = CPU_ALLOC_SIZE(cpu + 1);
  CPU_ZERO_S(size, only);
  CPU_SET_S(cpu, size, only);
  const int refused = pthread_setaffinity_np(thread.native_handle(), size, only);
  CPU_FREE(only);
  if (refused) throw std::runtime_error("a thread cannot be kept on processor " + std::to_string(cpu));
#else
  (void)thread;
  throw std::runtime_error("threads cannot be kept on processors on this system, asked for " + std::to_string(cpu));
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads, const std::vector<int>& cpus) : threads_(threads < 1 ? 1 : threads) {
  workers_.reserve(threads_ - 1);
  try {
    for (int worker = 1; worker < threads_; ++worker) {
      workers_.emplace_back([this, worker] { work(worker); });
      if (!cpus.empty()) pin(workers_.back(), cpus[worker % cpus.size()]);
    }
  } catch (const std::system_error& error) {
    const std::string begun = std::to_string(workers_.size() + 1);
    end();
    throw std::runtime_error("of " + std::to_string(threads_) + " threads the system allowed " + begun + ": " +
                             error.what());
  } catch (...) {
    end();
    throw;
  }
}

ThreadPool::~ThreadPool() { end(); }

void ThreadPool::end() {
  stop_ = true;
  epoch_.fetch_add(1);
  { std::lock_guard<std::mutex> lock(mutex_); }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_erased(Erased body, const void* context) {
  if (threads_ == 1) return body(context, 0);
  body_ = body;
  context_ = context;
  // Sequentially consistent, as is the sleeper's count: either we see the sleeper, or it sees the new epoch.
  epoch_.fetch_add(1);
  if (sleepers_.load() > 0) {
    { std::lock_guard<std::mutex> lock(mutex_); }
    wake_.notify_all();
  }
  body(context, 0);
  barrier();
}

void ThreadPool::work(int worker) {
  unsigned seen = 0;
  for (;;) {
    const auto began = std::chrono::steady_clock::now();
    while (epoch_.load(std::memory_order_acquire) == seen) {
      for (int i = 0; i < 32 && epoch_.load(std::memory_order_relaxed) == seen; ++i) pause();
      const auto waited = std::chrono::steady_clock::now() - began;
      if (waited >= kSpinBeforeYield) std::this_thread::yield();
      if (waited < kSpinBeforeSleep) continue;
      std::unique_lock<std::mutex> lock(mutex_);
      sleepers_.fetch_add(1);
      wake_.wait(lock, [&] { return epoch_.load() != seen; });
      sleepers_.fetch_sub(1);
    }
    ++seen;
    if (stop_) return;
    body_(context_, worker);
    barrier();
  }
}

void ThreadPool::await_phase_after(unsigned phase) const {
  for (int pauses = 0; phase_.load(std::memory_order_acquire) == phase; ++pauses) {
    if (pauses < kPausesBeforeYield)
      pause();
    else
      std::this_thread::yield();
  }
}

}  // namespace headrace
