"""LocalExecutor: the Executor protocol over a Runner in this process. With depth 1 a step runs when it is
collected, on the caller's thread; with more, steps run in order on one thread of their own while the engine
prepares the next.
"""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from headrace.core.batch import Batch, BatchOutput
from headrace.engine.executor import Capacity
from headrace.worker.disk_blocks import DiskBlocks
from headrace.worker.drafters.model import ModelDrafter
from headrace.worker.runner import Runner


class LocalExecutor:
    """disk: the lowest of its tiers, if it has one. drafter: a model that guesses, whose blocks lie in its cache."""

    def __init__(
        self,
        runner: Runner,
        capacity: Capacity,
        depth: int = 1,
        *,
        disk: DiskBlocks | None = None,
        drafter: ModelDrafter | None = None,
    ) -> None:
        self.disk = disk
        self.drafter = drafter
        self._runner = runner
        self._capacity = capacity
        self._thread = ThreadPoolExecutor(1, "headrace-step") if depth > 1 else None
        self._under_way: deque[Batch | Future[BatchOutput]] = deque()

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def submit(self, batch: Batch) -> None:
        self._under_way.append(batch if self._thread is None else self._thread.submit(self._runner.run, batch))

    def collect(self) -> BatchOutput:
        step = self._under_way[0]
        try:
            output = self._runner.run(step) if isinstance(step, Batch) else step.result()
        except Exception:
            self._under_way.popleft()
            raise
        # After a KeyboardInterrupt the step is still under way: whoever abandons the requests collects it again.
        self._under_way.popleft()
        return output

    def horizon(self) -> int:
        return 1

    def close(self) -> None:
        """Wait for steps and transfers under way and end the threads, if there are any."""
        if self._thread is not None:
            self._thread.shutdown()
        if self.disk is not None:
            self.disk.close()
