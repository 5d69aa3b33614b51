"""What the scheduler asks a device to compute, seen from the device."""

import numpy as np
import pytest
from tests.engine.engine_driver import capacity, collect, expected, request, run

from headrace.core.config import Config
from headrace.engine.engine import Engine
from headrace.engine.null_executor import NullExecutor
from headrace.policy.budget import LEAST_CHUNK
from headrace.policy.latency import LinearPrior


class Watcher(NullExecutor):
    """Remembers each slot's tenant and checks every batch against what any device may rely on."""

    def __init__(self, has, budget):
        super().__init__(has)
        self.budget = budget
        self.joins = {}
        self.computed = {}
        self.most = {}
        self.widest = 0

    def submit(self, batch):
        for slot in batch.leaves:
            del self.joins[slot]
        for join in batch.joins:
            assert join.slot not in self.joins, "a slot is left before it is taken again"
            self.joins[join.slot] = join
            self.computed[join.slot] = None
        assert 0 < batch.num_tokens <= self.budget
        assert len(set(batch.slots.tolist())) == len(batch.slots)
        assert all(getattr(batch, name).dtype == np.int32 for name in ("slots", "starts", "counts", "logit_position"))
        for slot, start, count in zip(batch.slots.tolist(), batch.starts.tolist(), batch.counts.tolist(), strict=True):
            assert count > 0
            before = self.computed[slot]
            assert before is None or start == before, "positions follow each other"
            self.computed[slot] = start + count
            seed = self.joins[slot].seed
            self.most[seed] = max(self.most.get(seed, 0), start + count)
        self.widest = max(self.widest, int(batch.counts.max()))
        entry, position = batch.logit_entry, batch.logit_position
        assert ((batch.starts[entry] <= position) & (position < batch.starts[entry] + batch.counts[entry])).all()
        super().submit(batch)


def serve(requests, *, depth=1, budget=16, **has):
    has = capacity(**has)
    watcher = Watcher(has, budget)
    engine = Engine(watcher, Config(pipeline_depth=depth, max_num_batched_tokens=budget))
    sent = run(engine, requests)
    for one in requests:
        assert sent[one.request_id].tokens == expected(one, has)
    return watcher, engine


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_last_token_is_never_computed(depth):
    requests = [request(f"r{i}", range(1 + 2 * i), 5 + 9 * i, seed=i) for i in range(4)]
    watcher, _ = serve(requests, depth=depth)
    for one in requests:
        assert watcher.most[one.seed] == len(one.prompt_ids) + one.max_tokens - 1


@pytest.mark.parametrize("depth", [1, 2])
def test_batches_are_well_formed_under_preemption(depth):
    requests = [request(f"r{i}", range(3 * i % 17 + 1), 25, seed=i, prompt_logprobs=i % 3 or None) for i in range(12)]
    _, engine = serve(requests, depth=depth, blocks=14, max_model_len=48)
    assert engine.stats().preemptions > 0


def test_a_long_prompt_goes_in_chunks_beside_decodes():
    has = capacity(slots=4)
    watcher = Watcher(has, 8)
    engine = Engine(watcher, Config(max_num_batched_tokens=8))
    engine.add(request("short", [1], 30), 0.0)
    engine.step(lambda: 0.0)
    engine.add(request("long", range(30), 4), 0.0)
    for _ in range(4):
        sent = engine.step(lambda: 0.0)
        assert [delta.request_id for delta in sent] == ["short"], "a chunk takes no step from a decode"
    assert watcher.widest == 7
    assert {delta.request_id for delta in engine.step(lambda: 0.0)} == {"short", "long"}


def test_a_step_under_way_is_overrun_past_a_stop_and_dropped():
    has = capacity()
    stop = expected(request("r", [1, 2], 20), has)[6]
    one = request("r", [1, 2], 20, eos_ids=(stop,))
    length = len(expected(one, has))
    watcher, engine = serve([one], depth=2)
    assert watcher.most[0] == 2 + length, "one position more than a depth of 1 computes"
    assert engine.stats().generated_tokens == length


class Timed(NullExecutor):
    """Notes of each step: its seconds, whether somebody decoded, and its tokens of longer entries."""

    def __init__(self, has, pace):
        super().__init__(has, pace=pace)
        self.steps = []

    def collect(self):
        batch, before = self._submitted[0], self.time
        output = super().collect()
        longer = int(batch.counts[batch.counts > 1].sum())
        self.steps.append((self.time - before, bool((batch.counts == 1).any()), longer))
        return output


@pytest.mark.parametrize("prior", ["knows", "learns"])
def test_with_a_time_target_no_step_with_decodes_takes_longer(prior):
    pace = LinearPrior(step=0.02, token=0.002, request=0, context=1e-6, pair=2e-6, row=0.001)
    has = capacity(slots=8, block_size=16, blocks=400, max_model_len=700, vocab_size=1000)
    executor = Timed(has, pace)
    engine = Engine(
        executor,
        Config(max_num_batched_tokens=512, target_itl_ms=150.0),
        prior=pace if prior == "knows" else None,
    )
    requests = [request(f"r{i}", [i] * 8, 120, seed=i) for i in range(6)]
    requests += [request(f"long{i}", range(400 + i), 3, seed=9 + i) for i in range(3)]
    for one in requests[:6]:
        engine.add(one, 0.0)
    sent = {}
    for later in [*requests[6:], None]:
        for _ in range(20):
            collect(engine.step(lambda: executor.time), sent)
        if later is not None:
            engine.add(later, executor.time)
    while engine.has_work:
        collect(engine.step(lambda: executor.time), sent)
    for one in requests:
        assert sent[one.request_id].tokens == expected(one, has)
    first_prompt = next(i for i, step in enumerate(executor.steps) if i > 5 and step[2])
    beside = executor.steps[first_prompt + (3 if prior == "learns" else 0) :]
    assert all(seconds <= 0.15 * 1.01 or longer <= LEAST_CHUNK for seconds, decodes, longer in beside if decodes)
    assert max(longer for _, decodes, longer in beside if decodes) > 2 * LEAST_CHUNK, "and it is used"
