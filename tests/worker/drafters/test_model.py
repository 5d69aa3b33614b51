"""A model that guesses, over a device in a page: it proposes what that device would generate, whatever was kept of its
earlier guesses, however requests come, go and press on its memory."""

from __future__ import annotations

from itertools import count

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.tiny_models import tiny_program

from headrace.core.config import Config
from headrace.core.request import Request, SamplingParams
from headrace.engine.engine import Engine
from headrace.engine.executor import Capacity
from headrace.engine.null_executor import NullExecutor, expected_tokens
from headrace.policy.speculation import Context
from headrace.worker.assembly import assemble
from headrace.worker.devices import cpu_device
from headrace.worker.drafters.model import ModelDrafter

VOCAB = 20


def drafter(blocks=200, windows=(None,), max_tokens=16):
    has = Capacity(
        num_slots=3,
        block_size=4,
        num_blocks=(blocks,) * len(windows),
        windows=windows,
        max_model_len=64,
        vocab_size=VOCAB,
    )
    return ModelDrafter(NullExecutor(has), max_tokens=max_tokens)


def would_follow(tokens, count, windows):
    request = Request("r", tokens, SamplingParams(temperature=0), count, seed=0)
    return expected_tokens(request, VOCAB, windows)


@given(st.data())
def test_it_proposes_what_it_would_generate(data):
    windows = data.draw(st.sampled_from([(None,), (None, 8)]))
    guesser = drafter(data.draw(st.sampled_from([20, 40, 200])), windows, data.draw(st.sampled_from([4, 16, 64])))
    texts: dict[int, list[int]] = {}
    serials = [0, 0, 0]
    asked = 0
    for _ in range(data.draw(st.integers(1, 8))):
        contexts = []
        for slot in data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True)):
            if slot not in texts or (data.draw(st.booleans()) and len(texts[slot]) > 40):
                serials[slot] += 1
                texts[slot] = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20))
            tokens = np.array(texts[slot], np.int32)
            contexts.append(Context(slot, serials[slot], ("", ""), tokens, data.draw(st.integers(1, 5))))
        for context, proposal in zip(contexts, guesser.propose(contexts), strict=True):
            known = context.tokens.tolist()
            if len(known) + context.most <= 64 and proposal.tokens:
                assert list(proposal.tokens) == would_follow(known, context.most, windows)
                assert all(
                    0 < after <= before for before, after in zip((1.0, *proposal.odds), proposal.odds, strict=False)
                )
                asked += 1
            kept = data.draw(st.integers(0, len(proposal.tokens)))
            texts[context.slot] = (known + list(proposal.tokens[:kept]) + [data.draw(st.integers(0, VOCAB - 1))])[:60]
    assert asked


def test_a_request_that_does_not_fit_gets_no_drafts_and_others_do():
    guesser = drafter(blocks=4)
    long = Context(0, 1, ("", ""), np.zeros(30, np.int32), 4)
    short = Context(1, 1, ("", ""), np.ones(5, np.int32), 4)
    nothing, some = guesser.propose([long, short])
    assert not nothing.tokens
    assert list(some.tokens) == would_follow([1] * 5, 4, (None,))


def test_a_model_that_guesses_badly_is_soon_not_asked_any_more():
    """Two random models over the kernels: the one knows nothing of what the other says."""
    devices = [
        assemble(
            tiny_program(seed=seed),
            cpu_device(1),
            num_slots=2,
            num_blocks=(32,),
            windows=(None,),
            max_model_len=256,
            max_tokens=64,
        )
        for seed in (0, 1)
    ]
    drafter = ModelDrafter(devices[1], max_tokens=64)
    engine = Engine(devices[0], Config(max_num_seqs=2), drafter=drafter)
    engine.add(Request("r", [1, 2, 3], SamplingParams(temperature=1.0), 200, seed=0), 0.0)
    ticks = count()
    while engine.has_work:
        engine.step(lambda: 1e-3 * next(ticks))
    # Its own odds say how little it knows: it is asked, and then hardly ever again.
    assert engine.drafting.proposed < 20
    assert 0 < drafter.num_steps < 60
