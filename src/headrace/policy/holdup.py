"""Why those who wait did not run in a step, and how long each reason has held since any moment: the whole queue is held
up by one thing at a time, so one clock for each reason tells it of every request, whatever their number.
"""

import enum


class Holdup(enum.StrEnum):
    """STEP: nothing but the step under way. SLOTS: as many requests run as may (--max-num-seqs). TOKENS: the step's
    tokens are spent on those who were there before. BLOCKS: the KV cache is full for who is next. PREFIX: another
    request is computing the prompt's beginning, or the disk brings it. FORM: the form of the output is compiled."""

    STEP = "step"
    SLOTS = "slots"
    TOKENS = "tokens"
    BLOCKS = "blocks"
    PREFIX = "prefix"
    FORM = "form"


_REASONS = tuple(Holdup)


def holdup(*, queued: int, parked: int, forming: int = 0, free_slots: int, tokens_left: bool) -> Holdup:
    """What held up who is still waiting after a step was planned. parked: those that wait for another's prefix or,
    `forming` of them, for their form."""
    if not queued:
        return Holdup.PREFIX if parked > forming else Holdup.FORM if forming else Holdup.STEP
    if not free_slots:
        return Holdup.SLOTS
    return Holdup.BLOCKS if tokens_left else Holdup.TOKENS


class HoldupClock:
    """Seconds that each reason has held. Times are on the engine's clock."""

    def __init__(self) -> None:
        self._spent = [0.0] * len(_REASONS)
        self._place = _REASONS.index(Holdup.STEP)
        self._since = 0.0

    @property
    def reason(self) -> Holdup:
        return _REASONS[self._place]

    def hold(self, reason: Holdup, now: float) -> None:
        """From now on this is what holds up the queue."""
        if reason is not _REASONS[self._place]:
            self._spent[self._place] += max(0.0, now - self._since)
            self._place, self._since = _REASONS.index(reason), now

    def read(self, now: float) -> tuple[float, ...]:
        """Seconds by reason until now, for since()."""
        spent = self._spent.copy()
        spent[self._place] += max(0.0, now - self._since)
        return tuple(spent)

    def since(self, earlier: tuple[float, ...], now: float) -> dict[Holdup, float]:
        """Seconds by reason since an earlier read, without those that did not come up."""
        spent = zip(_REASONS, self.read(now), earlier, strict=True)
        return {reason: late - early for reason, late, early in spent if late > early}
