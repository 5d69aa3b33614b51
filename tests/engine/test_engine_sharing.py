"""What requests have in common is computed once and kept once, and waiting for it holds up nobody else."""

from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.engine.engine_driver import capacity, collect, expected, make_engine, request, run

from headrace.core.request import FinishReason
from headrace.engine.null_executor import NullExecutor


class Counting(NullExecutor):
    """Counts the positions that it computes."""

    def __init__(self, has):
        super().__init__(has)
        self.computed = 0

    def submit(self, batch):
        self.computed += batch.num_tokens
        super().submit(batch)


def counting_engine(has, **settings):
    engine = make_engine(has, **settings)
    engine._executor = Counting(has)
    return engine, engine._executor


def steps(engine, count, sent):
    for _ in range(count):
        collect(engine.step(lambda: 0.0), sent)


def test_a_common_prefix_is_computed_once_though_all_arrive_together():
    has = capacity(slots=8, max_model_len=128)
    engine, device = counting_engine(has, max_num_batched_tokens=64)
    prefix = [*range(40)]
    asked = [request(f"r{i}", [*prefix, 41 + i], 4) for i in range(6)]
    sent = run(engine, asked)
    # The prefix once, the last token of each prompt, and three tokens fed back by each.
    assert device.computed == 40 + 6 + 6 * 3
    for one in asked:
        assert sent[one.request_id].tokens == expected(one, has)
    assert [sent[f"r{i}"].cached for i in range(6)] == [0, 40, 40, 40, 40, 40]


def test_who_waits_for_a_prefix_holds_up_nobody_behind():
    has = capacity(slots=8, max_model_len=128)
    engine = make_engine(has, max_num_batched_tokens=20)
    prefix = [*range(48)]
    engine.add(request("first", [*prefix, 1], 4), 0.0)
    engine.add(request("waits", [*prefix, 2], 4), 0.0)
    engine.add(request("other", [7, 7, 7], 4), 0.0)
    sent = {}
    steps(engine, 3, sent)
    # As soon as the first left tokens of a step, the other had them.
    assert engine.stats().waiting == 1 and engine.stats().running == 2
    while engine.has_work:
        steps(engine, 1, sent)
    assert sent["waits"].cached == 48
    assert engine.stats().preemptions == 0


def test_who_waits_goes_on_when_the_other_is_aborted():
    has = capacity(slots=8, max_model_len=128)
    engine = make_engine(has, max_num_batched_tokens=16)
    prefix = [*range(48)]
    second = request("second", [*prefix, 2], 4)
    engine.add(request("first", [*prefix, 1], 4), 0.0)
    engine.add(second, 0.0)
    sent = {}
    steps(engine, 1, sent)
    engine.abort(["first"], 0.0)
    while engine.has_work:
        steps(engine, 1, sent)
    assert sent["first"].reason is FinishReason.ABORT
    assert sent["second"].tokens == expected(second, has)
    # What the first had computed until then.
    assert sent["second"].cached == 16


def test_one_that_waits_can_be_aborted():
    has = capacity(slots=8, max_model_len=128)
    engine = make_engine(has, max_num_batched_tokens=16)
    for name in ("first", "second", "third"):
        engine.add(request(name, range(48), 4), 0.0)
    sent = {}
    steps(engine, 1, sent)
    assert engine.stats().waiting == 2
    engine.abort(["second"], 0.0)
    assert engine.stats().waiting == 1
    while engine.has_work:
        steps(engine, 1, sent)
    assert sent["second"].reason is FinishReason.ABORT
    assert sent["third"].cached == 47


def test_tokens_of_a_running_request_are_found():
    has = capacity(slots=8, max_model_len=128)
    engine = make_engine(has)
    one = request("one", [1, 2, 3], 30)
    whole = [1, 2, 3, *expected(one, has)]
    engine.add(one, 0.0)
    sent = {}
    steps(engine, 20, sent)
    assert len(sent["one"].tokens) == 20
    engine.add(request("two", whole[:19], 3), 0.0)
    while engine.has_work:
        steps(engine, 1, sent)
    # 18 may hit, of which 16 are in blocks that were full by then, and 2 in the one that was being written.
    assert sent["two"].cached == 16
    assert sent["one"].tokens == expected(one, has)


STEM = [1, 2, 3, 0, 1, 2, 2, 1]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.lists(st.integers(0, 3), max_size=2), st.integers(0, 3)), max_size=14),
    st.sampled_from([8, 12, 60]),
    st.sampled_from([(None,), (None, 6)]),
    st.integers(1, 2),
    st.sampled_from([3, 16]),
)
def test_sharing_to_the_token_changes_no_token(program, blocks, windows, depth, budget):
    """Prompts that agree to any token, in a pool in which sources of copies are taken at once."""
    has = capacity(slots=4, block_size=4, blocks=max(blocks, 12), windows=windows, max_model_len=40, vocab_size=5)
    engine = make_engine(has, pipeline_depth=depth, max_num_batched_tokens=budget)
    asked = {}
    sent = {}
    for i, (length, tail, gap) in enumerate(program):
        asked[f"r{i}"] = request(f"r{i}", [*(STEM * 4)[:length], *tail], 5, seed=i % 2)
        engine.add(asked[f"r{i}"], 0.0)
        steps(engine, gap, sent)
    while engine.has_work:
        steps(engine, 1, sent)
    for name, one in asked.items():
        assert sent[name].tokens == expected(one, has)
        event(f"part of a block: {sent[name].cached % 4 != 0}")
