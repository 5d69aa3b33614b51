"""What happens when a step raises: it is run again in halves until the request at fault stands alone. That one ends
with an error; the others get from the halves exactly what the whole step would have brought.

Relies on the executor's promise that a step that raised has only applied its leaves, joins, edits and copies.
"""

import logging

import numpy as np
from msgspec import structs

from headrace.core.batch import Batch, BatchOutput, BoolArray, DraftTokens, IntArray
from headrace.core.errors import EngineError
from headrace.engine.executor import Executor

log = logging.getLogger(__name__)


def drain(executor: Executor, count: int) -> None:
    """Wait for `count` steps that were begun after one that raised. What they bring means nothing: they ran on
    positions that were never computed, and are run again."""
    for _ in range(count):
        try:
            executor.collect()
        except Exception as error:  # noqa: BLE001  an executor may raise anything, and this step is void anyway
            log.info("a step begun after one that failed has failed too: %s", error)


def rerun(executor: Executor, batch: Batch, alive: BoolArray) -> tuple[BatchOutput, list[int]]:
    """Run the entries of a batch for which `alive`, without anything to apply. Returns an output with all
    rows of the batch (those of other entries are zero) and the entries at fault. Raises EngineError if several entries
    were run and none of them can be: then it is no request's fault."""
    whole: dict[str, np.ndarray] = {}
    reasons: dict[int, str] = {}
    culprits: list[int] = []
    entries = np.flatnonzero(alive)
    waiting: list[IntArray] = [entries.astype(np.int32)] if len(entries) else []
    while waiting:
        part = waiting.pop()
        rows = np.flatnonzero(np.isin(batch.logit_entry, part)).astype(np.int32)
        executor.submit(subset(batch, part, rows))
        try:
            output = executor.collect()
        except Exception as error:  # an executor may raise anything
            if len(part) > 1:
                waiting += np.array_split(part, 2)[::-1]
                continue
            culprits += part.tolist()
            log.exception("step %d fails because of the request in slot %d", batch.step, batch.slots[part[0]])
            if len(culprits) == len(entries) > 1:
                raise EngineError(
                    f"step {batch.step} fails for each of its {len(entries)} requests: {error}"
                ) from error
            continue
        _place(whole, output, rows, len(batch.logit_entry))
        reasons |= {int(rows[row]): reason for row, reason in output.reasons.items()}
    whole.setdefault("tokens", np.zeros(len(batch.logit_entry), np.int32))
    whole.setdefault("failed", np.zeros(len(batch.logit_entry), np.bool_))
    return BatchOutput(batch.step, **whole, reasons=reasons), sorted(culprits)


def subset(batch: Batch, entries: IntArray, rows: IntArray) -> Batch:
    """The batch of these entries and logit rows alone, with nothing to apply."""
    place = np.full(len(batch.slots), -1, np.int32)
    place[entries] = np.arange(len(entries))
    return structs.replace(
        batch.without_changes(),
        slots=batch.slots[entries],
        starts=batch.starts[entries],
        counts=batch.counts[entries],
        logit_entry=place[batch.logit_entry[rows]],
        logit_position=batch.logit_position[rows],
        logit_sample=batch.logit_sample[rows],
        logit_top=batch.logit_top[rows],
        drafts=None if batch.drafts is None else _drafts_of(batch.drafts, batch.slots[entries]),
    )


def _drafts_of(drafts: DraftTokens, slots: IntArray) -> DraftTokens:
    theirs = np.isin(drafts.slot, slots)
    return DraftTokens(drafts.slot[theirs], drafts.position[theirs], drafts.token[theirs])


def _place(whole: dict[str, np.ndarray], output: BatchOutput, rows: IntArray, num_rows: int) -> None:
    for name in BatchOutput.__struct_fields__:
        part = getattr(output, name)
        if name in ("step", "reasons") or part is None:
            continue
        width = part.shape[1:]
        seen = whole.get(name)
        if seen is None or seen.shape[1:] < width:
            wider = np.zeros((num_rows, *width), part.dtype)
            if seen is not None:
                wider[:, : seen.shape[1]] = seen
            seen = whole[name] = wider
        if width:
            seen[rows, : width[0]] = part
        else:
            seen[rows] = part
