// A team of threads that runs one body at a time, the caller included. Between bodies the workers spin for a short
// while and then sleep, so an idle process uses no processor. Inside a body, barrier() and chunks of a shared
// counter divide the work; what a chunk computes must not depend on who takes it.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace headrace {

class ThreadPool {
 public:
  // threads: at least 1, the caller included. cpus: worker i stays on the i-th of them (the caller, worker 0, is left
  // free); empty leaves all free. Throws std::runtime_error if the system refuses a thread or a processor.
  explicit ThreadPool(int threads, const std::vector<int>& cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // body(worker) once on every thread, the caller as worker 0; returns when all are done. body must not throw.
  // One caller at a time.
  template <class Body>
  void run(const Body& body) {
    run_erased([](const void* context, int worker) { (*static_cast<const Body*>(context))(worker); }, &body);
  }

  // body(index) for 0 <= index < count, in any order on any thread.
  template <class Body>
  void parallel_for(int count, const Body& body) {
    std::atomic<int> next{0};
    run([&](int) {
      for (int i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(i);
    });
  }

  // Inside a body: wait until every thread is here.
  void barrier() {
    barrier([] {});
  }
  // The same; whoever comes last does `between` before any goes on.
  template <class Between>
  void barrier(const Between& between) {
    const unsigned phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) < threads_ - 1) return await_phase_after(phase);
    between();
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
  }

 private:
  using Erased = void (*)(const void* context, int worker);
  void run_erased(Erased body, const void* context);
  void work(int worker);
  void end();
  void await_phase_after(unsigned phase) const;

  const int threads_;
  Erased body_ = nullptr;
  const void* context_ = nullptr;
  bool stop_ = false;
  alignas(64) std::atomic<unsigned> epoch_{0};  // one for each body
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> phase_{0};  // one for each barrier
  alignas(64) std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace headrace
