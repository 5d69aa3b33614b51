"""What each tenant has used of its limits. A request that is refused costs nothing, and neither does one that ends
before it began to run; the others cost a request, their prompt when they are taken, and what they generated when they
end.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from headrace.core.errors import OverloadedError, RequestError
from headrace.policy.limits import Limits, TenantLimits, TokenBucket


@dataclass(slots=True)
class _Usage:
    limits: TenantLimits
    requests: TokenBucket | None
    tokens: TokenBucket | None
    live: int = 0


@dataclass(frozen=True, slots=True)
class Charge:
    """What taking one request cost its tenant."""

    tenant: str
    requests: int
    tokens: int
    at: float


class Quotas:
    """Tenants are as many as the operator has named keys, so what is kept for each is kept for good."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._usage: dict[str, _Usage] = {}

    def check(
        self, tenant: str, *, requests: int, tokens: int, choices: int, now: float, end_after: Callable[[], float]
    ) -> None:
        """Raises OverloadedError if this would be over a limit now, RequestError if it always would be. choices: how
        many more run at once with it. end_after: seconds until one of those under way may have ended."""
        usage = self._of(tenant, now)
        limits, whose = usage.limits, f"the key {tenant!r}" if tenant else "a client"
        if limits.concurrent_requests is not None and usage.live + choices > limits.concurrent_requests:
            if choices > limits.concurrent_requests:
                raise RequestError(
                    f"n ({choices}) must be at most {limits.concurrent_requests}, as many as {whose} may have under "
                    "way at once",
                    param="n",
                )
            raise OverloadedError(
                f"{usage.live} requests are under way and {whose} may have {limits.concurrent_requests} at once: "
                "wait until one has ended",
                retry_after=end_after(),
                code="rate_limit_exceeded",
            )
        if usage.tokens is not None:
            wait = usage.tokens.wait(tokens, now)
            if wait == float("inf"):
                raise RequestError(
                    f"the prompt has {tokens} tokens, but {whose} may use {limits.tokens_per_minute} a minute: "
                    "shorten it",
                    param="prompt",
                )
            if wait > 0:
                raise _too_fast(whose, limits.tokens_per_minute, "tokens", wait)
        if usage.requests is not None and (wait := usage.requests.wait(requests, now)) > 0:
            raise _too_fast(whose, limits.requests_per_minute, "requests", wait)

    def take(self, tenant: str, *, requests: int, tokens: int, now: float) -> Charge:
        usage = self._of(tenant, now)
        usage.live += 1
        if usage.requests is not None:
            usage.requests.take(requests, now)
        if usage.tokens is not None:
            usage.tokens.take(tokens, now)
        return Charge(tenant, requests, tokens, now)

    def end(self, charge: Charge, *, ran: bool, generated: int, now: float) -> None:
        """A request that was taken has ended."""
        usage = self._usage[charge.tenant]
        usage.live -= 1
        if ran:
            if usage.tokens is not None:
                usage.tokens.take(generated, now)
            return
        if usage.requests is not None:
            usage.requests.give_back(charge.requests, charge.at, now)
        if usage.tokens is not None:
            usage.tokens.give_back(charge.tokens, charge.at, now)

    def _of(self, tenant: str, now: float) -> _Usage:
        usage = self._usage.get(tenant)
        if usage is None:
            limits = self._limits.of(tenant)
            requests, tokens = limits.requests_per_minute, limits.tokens_per_minute
            usage = self._usage[tenant] = _Usage(
                limits,
                None if requests is None else TokenBucket.per_minute(requests, now),
                None if tokens is None else TokenBucket.per_minute(tokens, now),
            )
        return usage


def _too_fast(whose: str, allowed: int | None, what: str, wait: float) -> OverloadedError:
    return OverloadedError(
        f"{whose} may use {allowed} {what} a minute, and they are used up: try again in {max(1, math.ceil(wait))} s",
        retry_after=wait,
        code="rate_limit_exceeded",
    )
