"""The Executor protocol: everything an engine asks of a device. Batches go in, outputs come out in the same
order; up to `depth` may be under way. Implementations: worker/local_executor.py (a real model), and NullExecutor
(engine/null_executor.py), a whole device in a page.
"""

from dataclasses import dataclass
from typing import Protocol

from headrace.core.batch import Batch, BatchOutput
from headrace.core.disk import DiskResult, StoredBlock, TierSizes
from headrace.policy.forms import Forms


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a device holds. num_blocks has one number per KV group; windows likewise (None: full attention).
    max_model_len bounds prompt + output. tiers: what is below the device, if anything."""

    num_slots: int
    block_size: int
    num_blocks: tuple[int, ...]
    windows: tuple[int | None, ...]
    max_model_len: int
    vocab_size: int
    tiers: TierSizes | None = None


class Executor(Protocol):
    @property
    def capacity(self) -> Capacity: ...

    def submit(self, batch: Batch) -> None:
        """Begin a step. Never blocks on the step itself."""

    def collect(self) -> BatchOutput:
        """Wait for the oldest step under way and return what it brought. Raises if the step raised; state then
        is as if the batch had only applied its leaves, joins, edits and copies."""

    def horizon(self) -> int:
        """How many identical decode steps may be taken as one: 1 for a device that really computes."""


class CompiledForms(Forms, Protocol):
    """Forms that are compiled beside the engine's steps."""

    def wait(self, seconds: float, /) -> None:
        """Until one is ready that was not at the last call, or so long."""


class Disk(Protocol):
    """The answering side of a disk, whose transfers come with the batches of an executor."""

    def stored(self) -> list[StoredBlock]:
        """What it held when it was opened, least recently used first."""

    def results(self, wait_s: float) -> list[DiskResult]:
        """What it has done since the last call; waits so long for the first result if there is none."""
