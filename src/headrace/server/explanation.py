"""A record of a request in sentences: what the cache had of it, what it waited for, and who took its place."""

from headrace.policy.cache_report import CacheReport, Miss
from headrace.policy.holdup import Holdup
from headrace.policy.records import RequestRecord
from headrace.server.faces import Tokenizer

_HELD_UP = {
    Holdup.STEP: "the step under way to end",
    Holdup.SLOTS: "a slot, since as many requests ran as may (--max-num-seqs)",
    Holdup.TOKENS: "its share of a step's tokens (--max-num-batched-tokens)",
    Holdup.BLOCKS: "blocks of the KV cache",
    Holdup.PREFIX: "its beginning, which another request was computing or the disk was bringing",
    Holdup.FORM: "the form of its output to be compiled",
}


def explain(record: RequestRecord, tokenizer: Tokenizer) -> list[str]:
    told = [_state(record), _waiting(record), *_cache(record, tokenizer), *_preemptions(record)]
    if record.replayed_tokens:
        told.insert(
            0,
            f"The engine was started again: of this request {record.replayed_tokens} tokens had been generated before, "
            "and what follows is told of the time since.",
        )
    return told


def _state(record: RequestRecord) -> str:
    size = f"{record.prompt_tokens} prompt tokens"
    if record.ended_after_s is not None:
        return (
            f"It ended with {record.finish_reason} {_seconds(record.ended_after_s)} after its arrival: {size}, "
            f"{record.generated_tokens} generated."
        )
    if record.position is not None:
        return (
            f"It is {record.state}, number {record.position} of those that wait, and will wait about "
            f"{_seconds(record.predicted_wait_s or 0.0)} more: {size}."
        )
    return f"It is {record.state}, {_seconds(record.age_s)} after its arrival: {size}."


def _waiting(record: RequestRecord) -> str:
    reasons = sorted(record.waited_for.items(), key=lambda item: -item[1])
    parts = [f"{_seconds(seconds)} for {_HELD_UP[Holdup(reason)]}" for reason, seconds in reasons if seconds >= 5e-4]
    waited = f"It waited {_seconds(record.waited_s)} in all"
    return f"{waited}: {', '.join(parts)}." if parts else f"{waited}."


def _cache(record: RequestRecord, tokenizer: Tokenizer) -> list[str]:
    cache = record.cache
    if cache is None:
        return []
    tiers = {"on the device": cache.device, "in host memory": cache.host, "on disk": cache.disk}
    found = " and ".join(f"{tokens} {tier}" for tier, tokens in tiers.items() if tokens) or "none"
    told = [f"Of its prompt's {record.prompt_tokens} tokens the cache had {found}. {_miss(record, cache, tokenizer)}"]
    if record.prefix_of is not None:
        told.append(f"It waited until {record.prefix_of} had computed what both begin with.")
    return told


def _miss(record: RequestRecord, cache: CacheReport, tokenizer: Tokenizer) -> str:
    at = f"index {cache.at}"
    match cache.miss:
        case Miss.NOTHING:
            return "No more could come from there: the last token is always computed."
        case Miss.NEW:
            return f"Nobody had gone on from {at} before."
        case Miss.DIVERGED:
            others = " or ".join(_token(token, tokenizer) for token in cache.others) or "another token"
            own = "another one" if cache.token is None else _token(cache.token, tokenizer)
            return f"At {at} it has {own}, where those before it had {others}."
        case Miss.EVICTED:
            ago = "" if record.evicted_ago_s is None else f" {_seconds(record.evicted_ago_s)} ago"
            whom = "" if cache.evicted_for is None else f" for {cache.evicted_for}"
            return f"What comes from {at} on was there, but its block was taken{ago}{whom}."
        case Miss.NAMESPACE:
            return f"What comes from {at} on is known under another cache_salt only."
        case Miss.SCORED:
            return f"From {at} on its prompt is computed for its log-probabilities."
        case Miss.OFF:
            return "There is no prefix cache (--no-enable-prefix-caching)."


def _token(token: int, tokenizer: Tokenizer) -> str:
    return f"token {token} ({tokenizer.decode([token])!r})"


def _preemptions(record: RequestRecord) -> list[str]:
    told = []
    for one in record.preemptions:
        why = "because blocks ran out" if one.by is None else f"for {one.by}, which goes before it"
        kept = ", with what it had computed moved aside" if one.kind == "swap" else ""
        again = "has not resumed" if one.resumed_after_s is None else f"resumed at {_seconds(one.resumed_after_s)}"
        told.append(f"It gave up its place {_seconds(one.after_s)} after its arrival, {why}{kept}, and {again}.")
    if (left_out := record.num_preemptions - len(record.preemptions)) > 0:
        told.insert(0, f"It had given up its place {left_out} times before.")
    return told


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
