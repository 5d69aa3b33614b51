"""Runner and SlotInputs: whatever the batch looks like, each row sees its own sequence and nothing else. The
reference here is the plainest use of a device: one sequence, alone, computed from its beginning in one step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.tiny_models import VOCAB, tiny_program

from headrace.core.batch import Batch, BlockCopies, BlockEdits, CopyKind, DraftTokens, SlotJoin
from headrace.core.request import SamplingParams
from headrace.ops.reference import ReferenceProgram
from headrace.ops.sampling import ReferenceSampler
from headrace.worker.assembly import assemble

BLOCK = 16
PROGRAM = tiny_program(kv_dtype="fp32")
WINDOWED = tiny_program(kv_dtype="fp32", windows=(None, 20))


def device(program=PROGRAM, depth=1):
    groups = len(program.kv)
    return assemble(
        program,
        lambda program, inputs, table: (ReferenceProgram(program, inputs), ReferenceSampler(table)),
        num_slots=3,
        num_blocks=(12,) * groups,
        windows=(None,) * groups,
        max_model_len=64,
        max_tokens=80,
        depth=depth,
    )


def ints(*values):
    return np.array(values, np.int32)


def join(slot, tokens):
    return SlotJoin(slot, np.array(tokens, np.int32), len(tokens), SamplingParams(temperature=0), 0, 0, ())


def blocks(slot, first, groups):
    """Four blocks for a slot in every group, not in order."""
    order = [first + 2, first, first + 3, first + 1]
    return BlockEdits(
        slot=ints(*[slot] * 4 * groups),
        group=np.repeat(np.arange(groups, dtype=np.int32), 4),
        index=ints(*[0, 1, 2, 3] * groups),
        block=ints(*order * groups),
        epoch=ints(*[0] * 4 * groups),
    )


def alone(program, tokens):
    """Log-probabilities of each token after the first, and the greedy next one, from a step of its own."""
    run = device(program)
    n = len(tokens)
    run.submit(
        Batch(
            step=1,
            slots=ints(0),
            starts=ints(0),
            counts=ints(n),
            logit_entry=np.zeros(n, np.int32),
            logit_position=np.arange(n, dtype=np.int32),
            logit_sample=np.arange(n) == n - 1,
            logit_top=np.zeros(n, np.int32),
            joins=(join(0, tokens),),
            edits=blocks(0, 0, len(program.kv)),
        )
    )
    output = run.collect()
    return output.logprob, int(output.tokens[-1])


sequences = st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=40)


@settings(max_examples=20, deadline=None)
@given(st.lists(sequences, min_size=1, max_size=3), st.randoms(use_true_random=False), st.booleans())
def test_any_cut_into_steps_gives_what_each_sequence_gives_alone(prompts, random, windowed):
    """Slots, order and chunks are drawn at random; scores and samples must be those of the sequence alone."""
    program = WINDOWED if windowed else PROGRAM
    run = device(program)
    slots = random.sample(range(3), len(prompts))
    done = [0] * len(prompts)
    scores = [[] for _ in prompts]
    samples = {}
    step = 0
    while any(d < len(p) for d, p in zip(done, prompts, strict=True)):
        step += 1
        chosen = [i for i, p in enumerate(prompts) if done[i] < len(p) and random.random() < 0.7]
        random.shuffle(chosen)
        if not chosen:
            continue
        counts = [random.randint(1, len(prompts[i]) - done[i]) for i in chosen]
        rows = [(e, done[i] + j) for e, (i, n) in enumerate(zip(chosen, counts, strict=True)) for j in range(n)]
        new = [i for i in chosen if done[i] == 0]
        edits = [blocks(slots[i], 4 * i, len(program.kv)) for i in new]
        run.submit(
            Batch(
                step=step,
                slots=ints(*[slots[i] for i in chosen]),
                starts=ints(*[done[i] for i in chosen]),
                counts=ints(*counts),
                logit_entry=ints(*[e for e, _ in rows]),
                logit_position=ints(*[p for _, p in rows]),
                logit_sample=np.array([p == len(prompts[chosen[e]]) - 1 for e, p in rows]),
                logit_top=np.zeros(len(rows), np.int32),
                joins=tuple(join(slots[i], prompts[i]) for i in new),
                edits=BlockEdits(*(np.concatenate([getattr(e, f) for e in edits] or [ints()]) for f in FIELDS)),
            )
        )
        output = run.collect()
        for (e, p), logprob, token in zip(rows, output.logprob, output.tokens.tolist(), strict=True):
            scores[chosen[e]].append(logprob)
            if p == len(prompts[chosen[e]]) - 1:
                samples[chosen[e]] = token
        for i, n in zip(chosen, counts, strict=True):
            done[i] += n
    for i, prompt in enumerate(prompts):
        expected, token = alone(program, prompt)
        np.testing.assert_allclose(scores[i], expected, atol=1e-3)
        assert samples[i] == token


FIELDS = ("slot", "group", "index", "block", "epoch")


def one(step, slot, start, count, **more):
    """A step of one slot, which samples after its last position."""
    last = start + count - 1
    return Batch(step, ints(slot), ints(start), ints(count), ints(0), ints(last), np.array([True]), ints(-1), **more)


def decode_step(step, position):
    return one(step, 0, position, 1)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_step_reads_the_sample_of_the_step_before_it(depth):
    """Both steps are submitted before the first is collected: the second refers to a token without a value yet."""
    prompt = [5, 6, 7]
    run = device(depth=depth)
    run.submit(one(1, 0, 0, 3, joins=(join(0, prompt),), edits=blocks(0, 0, 1)))
    run.submit(decode_step(2, 3))
    first, second = run.collect(), run.collect()
    run.close()
    assert (first.step, second.step) == (1, 2)
    assert first.tokens[0] == alone(PROGRAM, prompt)[1]
    assert second.tokens[0] == alone(PROGRAM, [*prompt, int(first.tokens[0])])[1]


def test_copied_blocks_hold_the_same_keys_and_values():
    prompt = list(range(16))
    run = device()
    run.submit(
        Batch(
            step=1,
            slots=ints(0),
            starts=ints(0),
            counts=ints(16),
            logit_entry=ints(),
            logit_position=ints(),
            logit_sample=np.zeros(0, np.bool_),
            logit_top=ints(),
            joins=(join(0, prompt),),
            edits=blocks(0, 0, 1),
        )
    )
    assert len(run.collect().tokens) == 0
    edits = BlockEdits(ints(1), ints(0), ints(0), ints(11), ints(0))
    spare = BlockEdits(ints(1), ints(0), ints(1), ints(10), ints(0))
    both = BlockEdits(*(np.concatenate([getattr(edits, f), getattr(spare, f)]) for f in FIELDS))
    copies = BlockCopies(ints(CopyKind.DEVICE), ints(0), ints(2), ints(11))
    run.submit(one(2, 1, 16, 1, joins=(join(1, [*prompt, 3]),), edits=both, copies=copies))
    assert run.collect().tokens[0] == alone(PROGRAM, [*prompt, 3])[1]


def test_a_step_at_the_last_position_has_room_for_its_sample():
    run = device()
    tokens = [1] * 64
    run.submit(one(1, 0, 0, 64, joins=(join(0, tokens),), edits=blocks(0, 0, 1)))
    assert not run.collect().failed.any()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"slots": ints(3)}, "slots must be from 0 to 2, got 3"),
        ({"starts": ints(-1)}, "starts must be from 0 to 64, got -1"),
        ({"counts": ints(0)}, "counts must be from 1 to 60, got 0"),
        ({"logit_entry": ints(1)}, "logit_entry must be from 0 to 0, got 1"),
        ({"logit_position": ints(6)}, "logit_position must be from 5 to 5, got 6"),
        ({"drafts": DraftTokens(ints(0), ints(65), ints(1))}, "draft positions must be from 0 to 64, got 65"),
    ],
)
def test_an_index_out_of_range_is_an_error(wrong, message):
    run = device()
    run.submit(structs.replace(decode_step(1, 5), **wrong))
    with pytest.raises(ValueError, match=message):
        run.collect()
