"""One replica in virtual time: a real Engine over a TimedExecutor. While nothing comes, steps that are alike are not
even begun: the replica only knows when they would have ended (it coasts), and catches up to any moment before that
when a request comes.
"""

from collections.abc import Callable, Sequence

from headrace.core.config import Config
from headrace.core.request import OutputDelta, Request
from headrace.engine.engine import Engine
from headrace.engine.executor import Capacity
from headrace.policy.latency import LatencyModel
from headrace.policy.pace import Pace
from headrace.policy.replica import Load
from headrace.simulate.executor import TimedExecutor
from headrace.simulate.guesses import Guesser

NEVER = float("inf")

Sink = Callable[[float, TimedExecutor, list[OutputDelta]], None]
"""Is told of steps that ended: when the first began, the device, which knows the ends, and what they brought."""


class Replica:
    """wake: when it wants to be woken, NEVER while it has nothing to do. busy: seconds of steps so far."""

    def __init__(
        self,
        capacity: Capacity,
        config: Config,
        pace: Pace,
        latency: LatencyModel,
        sink: Sink,
        guesser: Guesser | None = None,
        receives: int = 0,
    ) -> None:
        self._device = TimedExecutor(capacity, pace, None if guesser is None else guesser.take_seconds)
        self._engine = Engine(self._device, config, latency=latency, drafter=guesser, receives=receives)
        self._sink = sink
        self._under_way = False
        self._thaws = 0.0
        self.wake = NEVER
        self.busy = 0.0

    @property
    def engine(self) -> Engine:
        return self._engine

    def load(self) -> Load:
        return self._engine.load()

    def add(self, request: Request, now: float, *, replayed: bool = False) -> None:
        """Take a request, or go on with one of a replica that was lost. Raises RequestError as the engine does."""
        self.catch_up(now)
        self._engine.add(request, now, replayed=replayed)
        self._resume(now)

    def add_together(self, requests: Sequence[Request], now: float) -> None:
        """Take requests of which none is begun before all are there."""
        self.catch_up(now)
        for request in requests:
            self._engine.add(request, now)
        self._resume(now)

    def expect(self, request: Request, now: float) -> int | None:
        """Make room for what another replica computes of a request, as Engine.expect does."""
        self.catch_up(now)
        return self._engine.expect(request)

    def receive(self, request: Request, now: float) -> None:
        """Go on with a request whose tokens' keys and values have come."""
        self.catch_up(now)
        self._engine.receive(request, now)
        self._resume(now)

    def let_go(self, request_id: str, now: float) -> None:
        """Of what is kept or expected of a request."""
        self.catch_up(now)
        self._engine.let_go(request_id)
        self._resume(now)

    def woken(self) -> None:
        """It is time `wake`."""
        if not self._under_way:
            self._begin(self.wake)
        if self._under_way:
            self._finish()
            self._go_on()

    def freeze(self, now: float, seconds: float) -> None:
        """Nothing moves for so long; the step under way ends so much later, and no later for time that is frozen."""
        self.catch_up(now)
        device, frozen = self._device, max(self._thaws - now, 0.0)
        if seconds <= frozen:
            return
        self._thaws = now + seconds
        if self._under_way:
            device.ends = device.ends + (seconds - frozen)
            self.wake = float(device.ends[-1])
        else:
            device.now = self._thaws

    def slow(self, now: float, factor: float) -> None:
        """Steps that begin from now on take so many times as long."""
        self.catch_up(now)
        self._device.slowness = factor

    def catch_up(self, now: float) -> None:
        """Do what would have been begun by now: a step goes before a request that comes at the same moment."""
        while self.wake < NEVER and self._device.now <= now:
            if not self._under_way:
                self._begin(now)
            if self.wake > now:
                break
            self._finish()
            self._go_on()

    def _go_on(self) -> None:
        """Coast if what comes next is as the last step was, else begin it."""
        if not self._engine.has_work:
            self.wake = NEVER
            return
        repeats = self._engine.repeats()
        if repeats is None:
            self._begin()
        else:
            self.wake = self._device.look_ahead(repeats)

    def _resume(self, now: float) -> None:
        if not self._under_way and self._engine.has_work:
            self._device.now = max(self._device.now, now)
            self._begin()

    def _begin(self, until: float = NEVER) -> None:
        device = self._device
        device.until = until
        if not self._engine.begin_step(device.now):
            # Who waits does so for blocks that are lent; it goes on when they are let go.
            assert self._engine.lent, "an engine with work has begun no step"
            self.wake = NEVER
            return
        self._under_way = True
        self.wake = float(device.ends[-1])

    def _finish(self) -> None:
        device = self._device
        began, self._under_way = device.now, False
        deltas = self._engine.finish_step(self._clock)
        self.busy += device.now - began
        self._sink(began, device, deltas)

    def _clock(self) -> float:
        return self._device.now
