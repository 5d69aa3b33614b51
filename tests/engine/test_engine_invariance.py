"""No token may change: whatever runs beside it, however it is cut, cached, preempted or aborted around, a request's
tokens are those of the request alone. And nothing is lost, leaked or starved on the way."""

import random

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from tests.engine.engine_driver import capacity, collect, expected, make_engine, request, run

from headrace.core.request import FinishReason

MAX_LEN = 48
STEMS = ([1, 2, 3, 0, 1, 2] * 6, [2, 2, 1, 0, 3, 3] * 6)

prompts = st.builds(
    lambda stem, length, tail: STEMS[stem][:length] + tail,
    st.integers(0, 1),
    st.integers(0, 30),
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
)


@st.composite
def devices(draw):
    block_size = draw(st.sampled_from([2, 4, 16]))
    windows = draw(st.sampled_from([(None,), (None, 5), (7,), (None, 17, 3)]))
    depth = draw(st.integers(1, 3))
    budget = draw(st.sampled_from([1, 2, 5, 16, 64]))
    # From a pool that one request fills to one that never runs out.
    blocks = -(-MAX_LEN // block_size) + draw(st.sampled_from([0, 1, 5, 100]))
    counts = tuple(blocks if w is None else max(blocks, (w + budget * depth) // block_size + 3) for w in windows)
    has = capacity(
        slots=draw(st.sampled_from([1, 2, 4, 6])),
        block_size=block_size,
        blocks=counts,
        windows=windows,
        max_model_len=MAX_LEN,
        vocab_size=draw(st.sampled_from([4, 1000])),
    )
    caching = draw(st.sampled_from([True, True, False]))
    return has, {"pipeline_depth": depth, "max_num_batched_tokens": budget, "enable_prefix_caching": caching}


@st.composite
def requests(draw):
    prompt = draw(prompts)
    max_tokens = draw(st.integers(0, MAX_LEN - len(prompt)))
    return {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "seed": draw(st.integers(0, 2)),
        "eos_ids": draw(st.sampled_from([(), (0,)])),
        "stop_token_ids": draw(st.sampled_from([(), (), (1,), tuple(range(2, 20))])),
        "cache_salt": draw(st.sampled_from(["", "", "x"])),
        "min_tokens": draw(st.sampled_from([0, 0, min(3, max_tokens)])),
        "logprobs": draw(st.sampled_from([None, None, 2])),
        "prompt_logprobs": draw(st.sampled_from([None, None, None, 1])),
        "replayed": draw(st.sampled_from([0, 0, 0, 2])),
        "priority": draw(st.sampled_from([0, 0, 1, -1])),
        "tenant": draw(st.sampled_from(["", "", "other"])),
    }


actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), requests()),
        st.tuples(st.just("add"), requests()),
        st.tuples(st.just("step"), st.integers(1, 6)),
        st.tuples(st.just("abort"), st.integers(0, 30)),
    ),
    min_size=6,
    max_size=40,
)


def build(name, asked, has):
    asked = dict(asked)
    # Stop tokens outside the vocabulary would be refused.
    asked["stop_token_ids"] = [token for token in asked["stop_token_ids"] if token < has.vocab_size]
    replayed = asked.pop("replayed")
    made = request(name, asked.pop("prompt"), asked.pop("max_tokens"), **asked)
    before = expected(made, has)[:replayed]
    if len(before) < len(expected(made, has)):
        made = request(name, made.prompt_ids, made.max_tokens, output_ids=before, **asked)
    return made


def audit(engine):
    """Every block is held exactly as often as tables say, free and idle ones by nobody."""
    blocks = engine._blocks
    for group, pool in enumerate(blocks.pools):
        counted = [0] * pool.num_blocks
        for slot in engine._slots.order.tolist():
            last = blocks._capacity[slot] // blocks.block_size
            for block in blocks._tables[group, slot, blocks._first[group, slot] : last].tolist():
                counted[block] += 1
        assert counted == pool.refs.tolist()
        free, idle = pool._free[: pool.num_free].tolist(), pool.idle.blocks().tolist()
        assert len({*free, *idle}) == len(free) + len(idle) == len(free) + pool.num_idle
        assert all(counted[block] == 0 for block in (*free, *idle))
        assert pool.num_held == sum(count > 0 for count in counted)


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(devices(), actions)
def test_tokens_do_not_depend_on_anything_else(device, program):
    has, config = device
    engine = make_engine(has, **config)
    asked, sent, aborted = {}, {}, set()
    for kind, value in program:
        if kind == "add":
            one = build(f"r{len(asked)}", value, has)
            asked[one.request_id] = one
            engine.add(one, 0.0)
        elif kind == "step":
            for _ in range(value):
                collect(engine.step(lambda: 0.0), sent)
                audit(engine)
        elif asked:
            victim = f"r{value % len(asked)}"
            if victim not in sent or sent[victim].reason is None:
                aborted.add(victim)
            engine.abort([victim], 0.0)
            audit(engine)
    # Alone, one after the other, at one token a step, with one wasted step for each: nobody may need more.
    most = sum(len(one.prompt_ids) + one.max_tokens + 4 for one in asked.values()) * 4 + 20
    while engine.has_work:
        collect(engine.step(lambda: 0.0), sent)
        audit(engine)
        most -= 1
        assert most > 0, f"no end in sight: {engine.stats()}"
    for name, one in asked.items():
        got, whole = sent[name], expected(one, has)
        if got.reason is FinishReason.ABORT:
            assert name in aborted
            assert got.tokens == whole[: len(got.tokens)]
            continue
        assert got.tokens == whole
        stops = {*one.eos_ids, *one.params.stop_token_ids}
        long_enough = len(whole) + len(one.output_ids) > one.params.min_tokens
        stopped = bool(whole) and whole[-1] in stops and long_enough
        assert got.reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)
        if one.params.logprobs is not None:
            assert [scored.token for scored in got.logprobs] == whole
        if one.params.prompt_logprobs is not None and len(one.output_ids) < one.max_tokens:
            assert [scored.token for scored in got.prompt_logprobs] == one.prompt_ids[1:]
    stats = engine.stats()
    assert stats.blocks_used == stats.running == stats.waiting == 0
    assert sum(stats.finished.values()) == len(asked)
    event(f"preempted: {stats.preemptions > 0}")
    event(f"prefix hits: {stats.cached_tokens > 0}")
    event(f"aborted: {len(aborted) > 0}")


@pytest.mark.parametrize("windows", [(None,), (None, 9), (7,)])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("chunk", [3, 64])
def test_a_crowded_pool_preempts_and_changes_nothing(windows, depth, chunk):
    draw = random.Random(f"{windows} {depth} {chunk}")
    blocks = tuple(13 if w is None else max(13, (w + chunk * depth) // 4 + 3) for w in windows)
    has = capacity(slots=6, block_size=4, blocks=blocks, windows=windows, max_model_len=MAX_LEN)
    engine = make_engine(has, pipeline_depth=depth, max_num_batched_tokens=chunk)
    asked = []
    for i in range(60):
        prompt = [*STEMS[i % 2][: draw.randrange(30)], draw.randrange(4)]
        scored = draw.choice([None, None, None, 1])
        length = draw.randrange(1, MAX_LEN - len(prompt))
        asked.append(request(f"r{i}", prompt, length, seed=i % 3, prompt_logprobs=scored))
    sent = run(engine, asked)
    for one in asked:
        assert sent[one.request_id].tokens == expected(one, has)
        if one.params.prompt_logprobs is not None:
            assert [scored.token for scored in sent[one.request_id].prompt_logprobs] == one.prompt_ids[1:]
    stats = engine.stats()
    assert stats.blocks_used == 0
    assert stats.cached_tokens > 0
    if None in windows:
        assert stats.preemptions > 10


def test_first_come_first_served_under_preemption():
    """The earliest is never preempted, so of equal requests the earlier ends first."""
    has = capacity(slots=4, block_size=4, blocks=12, max_model_len=MAX_LEN)
    engine = make_engine(has, max_num_batched_tokens=16)
    for i in range(12):
        engine.add(request(f"r{i}", [i % 4] * 9, 30), 0.0)
    ended = []
    while engine.has_work:
        ended += [delta.request_id for delta in engine.step(lambda: 0.0) if delta.finish_reason]
    assert ended == [f"r{i}" for i in range(12)]
    assert engine.stats().preemptions > 0
