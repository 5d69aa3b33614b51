"""A model that guesses, with keys and values in the engine's own blocks. Guessing for a device that computes the same,
it is always right, whatever becomes of the blocks: so whatever is wrong in them shows."""

from __future__ import annotations

import dataclasses
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tiny_models import tiny_program
from tests.worker.drafters.null_pair import null_pair

from headrace.core.config import Config
from headrace.core.disk import TierSizes
from headrace.core.request import Request, SamplingParams
from headrace.engine.engine import Engine
from headrace.engine.executor import Capacity
from headrace.engine.null_disk import NullDisk
from headrace.engine.null_executor import expected_tokens
from headrace.worker.assembly import DraftModel, assemble
from headrace.worker.devices import cpu_device

VOCAB = 20
MAX_LEN = 64


def capacity(blocks=200, windows=(None, None), host=0):
    tiers = TierSizes((host,) * 2, (500,) * 2, 1 << 30, idle_s=0.004) if host else None
    return Capacity(3, 4, (blocks,) * 2, windows, MAX_LEN, VOCAB, tiers)


def run(engine, requests, swap_every=0):
    """Returns the tokens of each; every few steps for a while, one that runs is swapped out."""
    got = {request.request_id: [] for request in requests}
    for request in requests:
        engine.add(request, 0.0)
    ticks = count()
    steps = 0
    while engine.has_work:
        steps += 1
        running = engine._slots.order
        if swap_every and steps % swap_every == 0 and steps < 60 and len(running) > 1:
            engine._scheduler._roster.preempt(engine._slots[int(running[-1])], swap=engine._blocks.tiers is not None)
        for delta in engine.step(lambda: 1e-3 * next(ticks)):
            got[delta.request_id] += delta.token_ids
    assert engine.stats().blocks_used == 0
    return got


STEMS = ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13], [1, 2, 3, 4, 9, 9, 9, 9, 1, 1, 1, 2])


@st.composite
def requests(draw):
    made = []
    for i in range(draw(st.integers(1, 6))):
        stem = draw(st.sampled_from(STEMS))[: draw(st.integers(1, 13))]
        prompt = stem + draw(st.lists(st.integers(0, VOCAB - 1), max_size=8))
        most = draw(st.integers(1, 30))
        scored = draw(st.sampled_from([None, None, 0]))
        params = SamplingParams(temperature=0, max_tokens=most, prompt_logprobs=scored)
        made.append(Request(f"r{i}", prompt, params, most, seed=0, cache_salt=draw(st.sampled_from(["", "", "x"]))))
    return made


@pytest.mark.usefixtures("free_rows")
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(
    asked=requests(),
    blocks=st.sampled_from([16, 18, 24, 40, 200]),
    windows=st.sampled_from([(None, None), (6, None)]),
    host=st.sampled_from([0, 0, 8, 40]),
    max_tokens=st.sampled_from([3, 6, 64]),
    budget=st.sampled_from([4, 9, 64]),
    depth=st.integers(1, 2),
    caching=st.booleans(),
    swap_every=st.sampled_from([0, 0, 3, 5]),
    most=st.integers(1, 7),
)
def test_what_it_has_cached_is_right_through_everything(
    asked, blocks, windows, host, max_tokens, budget, depth, caching, swap_every, most
):
    held = {}
    config = Config(
        max_num_batched_tokens=budget,
        pipeline_depth=depth,
        num_speculative_tokens=most,
        enable_prefix_caching=caching or host > 0,
    )
    drafted = 0
    for times in range(2):  # the second engine is a restart, which finds what the first left on disk
        disk = NullDisk(1) if host else None
        if disk is not None:
            disk.held = held
        device, drafter = null_pair(capacity(blocks, windows, host), max_tokens=max_tokens, disk=disk)
        engine = Engine(device, config, drafter=drafter, disk=disk)
        for again in range(2):
            named = [
                Request(f"{one.request_id}-{times}-{again}", one.prompt_ids, one.params, one.max_tokens, seed=0)
                for one in asked
            ]
            for request, tokens in zip(named, run(engine, named, swap_every).values(), strict=True):
                assert tokens == expected_tokens(request, VOCAB, windows[:1])
        drafting = engine.drafting
        assert windows[0] or drafting.accepted == drafting.proposed
        drafted += drafting.proposed
    if max(one.max_tokens for one in asked) > 10 and blocks > 40 and not windows[0]:
        assert drafted > 0


@pytest.mark.usefixtures("free_rows")
def test_a_prefix_that_the_other_model_finds_cached_is_cached_for_it_too():
    device, drafter = null_pair(capacity())
    engine = Engine(device, Config(), drafter=drafter)
    text = list(range(20)) * 2
    run(engine, [Request("first", text, SamplingParams(), 10, seed=0)])
    first, drafter.num_rows = drafter.num_rows, 0
    run(engine, [Request("second", text, SamplingParams(), 10, seed=0)])
    assert first > 40
    assert drafter.num_rows < 16
    drafter.num_rows = 0
    run(engine, [Request("other", text, SamplingParams(), 10, seed=0, cache_salt="x")])
    assert drafter.num_rows == first


@pytest.mark.usefixtures("free_rows")
def test_what_is_read_from_disk_after_a_restart_serves_both():
    disk, text, rows = NullDisk(), list(range(20)) * 2, []
    for name in ("before", "after"):
        device, drafter = null_pair(capacity(host=40), disk=disk)
        engine = Engine(device, Config(), drafter=drafter, disk=disk)
        run(engine, [Request(name, text, SamplingParams(), 10, seed=0)])
        rows.append(drafter.num_rows)
        engine.settle(count(0.0, 1e-3).__next__, 10.0)
    assert engine.stats().hits_by_tier["disk"] >= 36
    assert rows[0] > 40 > 20 > rows[1]


@pytest.mark.usefixtures("free_rows")
def test_a_text_longer_than_it_takes_gets_no_guesses_and_is_answered():
    device, drafter = null_pair(capacity(), max_model_len=20)
    engine = Engine(device, Config(), drafter=drafter)
    request = Request("r", [1, 2, 3], SamplingParams(), 40, seed=0)
    assert run(engine, [request])["r"] == expected_tokens(request, VOCAB)
    assert 0 < engine.drafting.proposed == engine.drafting.accepted <= 18


def kernels(kv_dtype, seed):
    """A random model that a random model of this seed guesses for, the first one's being 0."""
    guesser = tiny_program(kv_dtype=kv_dtype, seed=seed)
    guesser.kv = tuple(dataclasses.replace(layout, noted=True) for layout in guesser.kv)
    executor = assemble(
        tiny_program(kv_dtype=kv_dtype),
        cpu_device(1),
        num_slots=3,
        num_blocks=(40, 40),
        windows=(None, None),
        max_model_len=256,
        max_tokens=64,
        draft=DraftModel(guesser, cpu_device(1), 256),
    )
    config = Config(max_num_seqs=3, max_num_batched_tokens=64)
    return Engine(executor, config, drafter=executor.drafter), executor.drafter


@pytest.mark.usefixtures("free_rows")
@pytest.mark.parametrize("kv_dtype", ["bf16", "fp32", "int8"])
def test_a_model_that_guesses_for_itself_is_always_right(kv_dtype):
    engine, _ = kernels(kv_dtype, seed=0)
    asked = [Request(f"r{i}", [1, 2, i], SamplingParams(temperature=0), 200, seed=i) for i in range(2)]
    run(engine, asked)
    assert engine.drafting.accepted == engine.drafting.proposed > 100


def test_a_model_that_guesses_badly_is_soon_not_asked_any_more():
    """Its own odds say how little it knows: it is asked, and then hardly ever again."""
    engine, drafter = kernels("bf16", seed=1)
    run(engine, [Request("r", [1, 2, 3], SamplingParams(temperature=1.0), 200, seed=0)])
    assert engine.drafting.proposed < 20
    assert 0 < drafter.num_steps < 60
