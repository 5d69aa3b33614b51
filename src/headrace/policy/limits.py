"""What each tenant may ask for: TenantLimits as the operator wrote them, and TokenBucket, which keeps a rate. Time is
an argument, in seconds on any clock that does not run backwards.
"""

from __future__ import annotations

import msgspec

from headrace.core.errors import ConfigError

SECONDS_PER_MINUTE = 60.0


class TenantLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None: no limit. tokens_per_minute counts prompt tokens when a request is taken and generated ones when it ends.
    concurrent_requests counts those that wait and those that run. weight: its share beside other tenants' where there
    is not enough for all."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.weight < float("inf"):
            raise ConfigError(f"weight must be above 0, got {self.weight}", field="tenant_limits")
        for name in ("requests_per_minute", "tokens_per_minute", "concurrent_requests"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}", field="tenant_limits")


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """default: for each tenant that is not named, by itself."""

    default: TenantLimits = TenantLimits()
    tenants: dict[str, TenantLimits] = {}

    def of(self, tenant: str) -> TenantLimits:
        return self.tenants.get(tenant, self.default)


class TokenBucket:
    """Starts full with `size` tokens and gains `rate` a second up to that. If only what is there is taken, then over
    any time w at most size + rate * w is. Debts may be made: then nothing can be taken until they are paid."""

    def __init__(self, size: float, rate: float, now: float) -> None:
        self._size = size
        self._rate = rate
        self._level = size
        self._at = now

    @classmethod
    def per_minute(cls, tokens: int, now: float) -> TokenBucket:
        return cls(tokens, tokens / SECONDS_PER_MINUTE, now)

    def wait(self, cost: float, now: float) -> float:
        """Seconds until `cost` could be taken: 0 if it can be now, infinity if it never will."""
        if cost > self._size:
            return float("inf")
        missing = cost - self._refill(now)
        # Sums of floats: who waited as long as was said must not find a trillionth missing.
        return missing / self._rate if missing > self._size * 1e-9 else 0.0

    def take(self, cost: float, now: float) -> None:
        self._level = self._refill(now) - cost

    def give_back(self, cost: float, taken_at: float, now: float) -> None:
        """Undo a take whose cost was not used. What has flowed in since may have found the bucket full without it, so
        that much is not given: the level is never above what it would be had nothing been taken."""
        self._level = min(self._size, self._refill(now) + max(0.0, cost - self._rate * (now - taken_at)))

    def _refill(self, now: float) -> float:
        if now > self._at:
            self._level = min(self._size, self._level + self._rate * (now - self._at))
            self._at = now
        return self._level
