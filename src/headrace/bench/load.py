"""Sends a planned load on time, at most so many requests at once, and gathers what came of it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from headrace.bench.arrivals import Planned
from headrace.bench.outcome import Outcome

Send = Callable[[Planned], Awaitable[Outcome]]


async def run_load(
    planned: Sequence[Planned], send: Send, *, max_concurrency: int | None, progress: Callable[[int], object]
) -> tuple[list[Outcome], float]:
    """Outcomes in the plan's order, and seconds from the first request to the last answer. progress is told of each
    that ended. Who waits because too many are under way is sent as soon as one has ended."""
    places = asyncio.Semaphore(max_concurrency or len(planned))

    async def one(request: Planned, due: float) -> Outcome:
        late = max(0.0, time.perf_counter() - due)
        async with places:
            outcome = await send(request)
        outcome.late = late
        progress(1)
        return outcome

    begun = time.perf_counter()
    sending: list[asyncio.Task[Outcome]] = []
    for request in planned:
        due = begun + request.at
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        sending.append(asyncio.create_task(one(request, due)))
    outcomes = list(await asyncio.gather(*sending))
    return outcomes, time.perf_counter() - begun
