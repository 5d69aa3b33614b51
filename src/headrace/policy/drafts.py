"""The tokens that are guessed in a step, and what becomes of the step's arrays with them. All is made of lists and
turned into arrays at once: the numbers are few, and where caches are cold an array costs by being made, not by length.
"""

from operator import add

import msgspec

from headrace.core.batch import DraftTokens, IntArray, int_arrays


class Laid(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A step that computes drafts too. Of entries: starts, counts, ends, and how many drafts they have (drafted). Of
    entries that sample: how many tokens are known then. Of rows that sample: entry, slot, which token of it the row
    names (index), and the position before."""

    placed: DraftTokens
    starts: IntArray
    counts: IntArray
    ends: IntArray
    drafted: IntArray
    known: IntArray
    entry: IntArray
    slot: IntArray
    index: IntArray
    before: IntArray


class Drafts(msgspec.Struct, frozen=True, gc=False, eq=False):
    """counts: draft tokens for each entry of a plan; tokens: theirs, entry after entry."""

    counts: list[int]
    tokens: list[int]

    def whose(self, slots: list[int]) -> list[int]:
        """Which of the entries' slots have any."""
        return [slot for slot, count in zip(slots, self.counts, strict=True) if count]

    def beside(self, slots: list[int], starts: list[int], counts: list[int], sampling: list[int]) -> Laid:
        """The step of these entries once it computes the drafts too. sampling: entries that sample, as all with drafts
        do."""
        ends = [*map(add, starts, counts)]
        known: list[int] = []
        rows: tuple[list[int], ...] = [], [], [], []
        placed: tuple[list[int], ...] = [], []
        for entry in sampling:
            slot, end, count = slots[entry], ends[entry], self.counts[entry]
            last = end + count
            known.append(last + 1)
            rows[0].extend([entry] * (count + 1))
            rows[1].extend([slot] * (count + 1))
            rows[2].extend(range(end, last + 1))
            rows[3].extend(range(end - 1, last))
            placed[0].extend([slot] * count)
            placed[1].extend(range(end, last))
        counts, ends = [*map(add, counts, self.counts)], [*map(add, ends, self.counts)]
        *laid, slot_of, position, token = int_arrays(
            starts, counts, ends, self.counts, known, *rows, *placed, self.tokens
        )
        return Laid(DraftTokens(slot_of, position, token), *laid)
