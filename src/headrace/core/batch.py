"""What one step computes (Batch) and what it brings (BatchOutput), as arrays.

A Batch says everything that changed and nothing else: requests that took or left a slot, block-table edits, and
which positions of which slots to compute. It refers to a slot's last token, never to its value, so a step may be
begun before the previous one has named its samples. All index arrays are int32, C-contiguous.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import structs

from headrace.core.disk import DiskTransfer
from headrace.core.request import SamplingParams

IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float32]
WordArray = npt.NDArray[np.uint32]

EMPTY: IntArray = np.zeros(0, np.int32)


def int_arrays(*columns: Sequence[int]) -> list[IntArray]:
    """An array of each, all cut from one: where caches are cold, arrays of few numbers cost by their number."""
    values: list[int] = []
    for column in columns:
        values += column
    whole: IntArray = np.array(values, np.int32)
    arrays, end = [], 0
    for column in columns:
        begin, end = end, end + len(column)
        arrays.append(whole[begin:end])
    return arrays


class SlotJoin(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A request takes a slot. tokens: all its known tokens, prompt first (int32 [known]); the first prompt_len
    are the prompt. Penalties, seeds and positions derive from these alone, so a resumed request continues
    exactly. eos_ids and stop_token_ids may not be sampled before min_tokens outputs exist."""

    slot: int
    tokens: IntArray
    prompt_len: int
    params: SamplingParams
    seed: int
    choice: int
    eos_ids: tuple[int, ...]


class BlockEdits(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Block-table writes, in order: table[group][slot, index] = block. epoch is the block's epoch."""

    slot: IntArray = EMPTY
    group: IntArray = EMPTY
    index: IntArray = EMPTY
    block: IntArray = EMPTY
    epoch: IntArray = EMPTY


class TokenMasks(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Which tokens may be sampled. bits uint32 [masks, ceil(vocab / 32)]: bit t % 32 of word t // 32 is token t's.
    row int32 [logit rows]: which mask holds for a row, -1 for none."""

    row: IntArray
    bits: WordArray


class CopyKind(enum.IntEnum):
    """From where to where a block is copied: inside the device, to the host's memory, or from there."""

    DEVICE = 0
    DOWN = 1
    UP = 2


class BlockCopies(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Whole blocks to copy, one after the other in this order: block source[i] of a group to destination[i], each in
    the tier that kind[i] (a CopyKind) says. A later copy may read or write what an earlier one wrote or read."""

    kind: IntArray = EMPTY
    group: IntArray = EMPTY
    source: IntArray = EMPTY
    destination: IntArray = EMPTY


NO_EDITS, NO_COPIES = BlockEdits(), BlockCopies()


class DraftTokens(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Guesses, int32 [drafts]: token[i] stands at position[i] of slot[i] for this step, until it is sampled over."""

    slot: IntArray
    position: IntArray
    token: IntArray


class Batch(msgspec.Struct, frozen=True, gc=False, eq=False):
    """One step. Entry i computes positions starts[i] .. starts[i]+counts[i]-1 of slot slots[i]; the flat rows of
    the step are these, entry after entry.

    Logit rows may lie at any positions: logit row j belongs to entry logit_entry[j] and wants the distribution
    of the token after position logit_position[j]. Where logit_sample[j], the token at position + 1 is sampled
    and becomes that slot's known token; otherwise the already known token at position + 1 is scored (prompt
    log-probabilities). logit_top[j] is how many likeliest tokens to report, or -1 for no log-probability.
    drafts are taken for known tokens; where they differ from what is sampled in their place, what was computed after
    them means nothing.
    Leaves are applied first, then joins, then edits, then copies; then disk transfers are begun and the step runs.

    steps above 1: it stands for so many steps, each of one token for every entry; starts, counts and logit_position are
    the first one's and rise by one from step to step. Made only for a device whose horizon() allows it, of entries
    that sample and ask for nothing else.
    """

    step: int
    slots: IntArray
    starts: IntArray
    counts: IntArray
    logit_entry: IntArray
    logit_position: IntArray
    logit_sample: BoolArray
    logit_top: IntArray
    leaves: tuple[int, ...] = ()
    joins: tuple[SlotJoin, ...] = ()
    edits: BlockEdits = NO_EDITS
    copies: BlockCopies = NO_COPIES
    transfers: tuple[DiskTransfer, ...] = ()
    steps: int = 1
    drafts: DraftTokens | None = None

    @property
    def num_tokens(self) -> int:
        return int(sum(self.counts.tolist())) * self.steps

    def without_changes(self) -> Batch:
        """The same to compute, with nothing to apply before it."""
        return structs.replace(self, leaves=(), joins=(), edits=NO_EDITS, copies=NO_COPIES, transfers=())

    def one_by_one(self) -> Iterator[Batch]:
        """The single steps that this batch stands for, in order; what is to be applied comes with the first."""
        if self.steps == 1:
            yield self
            return
        for later in range(self.steps):
            one = structs.replace(
                self,
                starts=self.starts + np.int32(later),
                logit_position=self.logit_position + np.int32(later),
                steps=1,
            )
            yield one if later == 0 else one.without_changes()


class BatchOutput(msgspec.Struct, frozen=True, gc=False, eq=False):
    """What a Batch brought, row by row in the order of its logit rows; of several steps, step after step.

    tokens int32 [m]: the sampled (or scored) token. failed bool [m]: the logits were not finite, or what reasons
    says of the row; the token means nothing. logprob float32 [m], rank int32 [m], top_ids int32 [m, k], top_logprobs
    float32 [m, k] are None when no row asked; k is the largest logit_top of the batch and unused columns hold
    -1 / -inf.
    """

    step: int
    tokens: IntArray
    failed: BoolArray
    logprob: FloatArray | None = None
    rank: IntArray | None = None
    top_ids: IntArray | None = None
    top_logprobs: FloatArray | None = None
    reasons: dict[int, str] = {}
