"""Records of requests and of steps: what is kept of them, and told to whoever asks. Plain values, so that who only
reads them loads none of what writes them.
"""

import msgspec

from headrace.policy.cache_report import CacheReport
from headrace.policy.holdup import Holdup


class PreemptionRecord(msgspec.Struct, gc=False):
    """after_s: since the request's arrival. kind: swap (what it had computed is moved aside) or recompute. by: who
    needed its place, if it was another's priority; None if blocks ran out for those that run. resumed_after_s: when it
    ran again."""

    after_s: float
    kind: str = "recompute"
    by: str | None = None
    resumed_after_s: float | None = None


class RequestRecord(msgspec.Struct, gc=False):
    """Seconds are counted from the request's arrival at the engine. waited_s: in the queue, also after preemptions;
    waited_for: the same by what held it up. prefix_of: whose computation of the same beginning it waited for last.
    cache: what the prefix cache had when it first ran; evicted_ago_s: when the block was taken that it says was.
    replayed_tokens: what an engine before this one had generated. position, predicted_wait_s: while it waits, its place
    in the queue and how long until its turn."""

    request_id: str
    state: str
    tenant: str
    priority: int
    deadline_s: float | None
    prompt_tokens: int
    max_tokens: int
    age_s: float = 0.0
    generated_tokens: int = 0
    cached_tokens: int | None = None
    waited_s: float = 0.0
    waited_for: dict[str, float] = {}
    begun_after_s: float | None = None
    ended_after_s: float | None = None
    finish_reason: str | None = None
    num_preemptions: int = 0
    preemptions: list[PreemptionRecord] = []
    cache: CacheReport | None = None
    prefix_of: str | None = None
    replayed_tokens: int = 0
    evicted_ago_s: float | None = None
    position: int | None = None
    predicted_wait_s: float | None = None


class StepRecord(msgspec.Struct, gc=False):
    """begun_s is on the engine's clock. requests, tokens: entries of the batch and positions they compute; budget: most
    tokens that it might have had. joined: requests that began or resumed in it; preempted: those that gave way.
    running, waiting: once it was planned. held_up_by: why those who wait did not run; next: the id of who is first
    among them. took_ms: None while it is under way.
    predicted_ms: what the latency model expects of such a step, None for several at once."""

    step: int
    begun_s: float
    requests: int
    tokens: int
    budget: int
    joined: int
    preempted: int
    running: int
    waiting: int
    held_up_by: Holdup | None
    next: str | None
    predicted_ms: float | None = None
    took_ms: float | None = None
