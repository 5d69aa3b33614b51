"""Worlds for test_combinations.py: what clients ask for, how an engine is set up and disturbed, and who guesses, drawn
together. A client's answer is what it gets alone from a plain engine: no cache, no company, nothing guessed."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import strategies as st
from tests.letters import Letters
from tests.tiny_models import VOCAB, tiny_program

from headrace.core.config import Config
from headrace.core.request import CacheHint, FinishReason, OutputDelta, Request, SamplingParams
from headrace.core.structured import StructuredOutputsParams
from headrace.engine.completion import Choice, Limits, SeedSource, build_requests
from headrace.engine.engine import Engine
from headrace.models.grammar import GrammarCompiler
from headrace.policy.speculation import NOTHING, Drafter, Proposal
from headrace.server.tools.formats import FORMATS
from headrace.worker.assembly import DiskSpace, DraftModel, assemble
from headrace.worker.devices import cpu_device
from headrace.worker.drafters.by_name import lookup_drafter
from headrace.worker.forms import FormsUnderWay
from headrace.worker.local_executor import LocalExecutor

MAX_LEN = 128
SLOTS = 5
BLOCK = 16
ENOUGH = MAX_LEN // BLOCK
END = VOCAB - 1
WORDS = Letters(VOCAB)
LIMITS = Limits(MAX_LEN, VOCAB, (END,))
GRAMMARS = GrammarCompiler(lambda: WORDS, VOCAB)


class Text:
    """A Detokenizer of Letters."""

    def __init__(self, skip: bool) -> None:
        self._skip = WORDS.special_ids if skip else frozenset()

    def push(self, ids: list[int]) -> str:
        return b"".join(WORDS.token_bytes(i) for i in ids if i not in self._skip).decode()

    def flush(self) -> str:
        return ""


# What clients ask for


@dataclasses.dataclass(frozen=True)
class Asked:
    """A client's request. Some parameters are taken from the answer without them, of which they are `of` the first
    choice's tokens or characters: (first, how many), None for none."""

    prompt: tuple[int, ...]
    params: SamplingParams
    stop: tuple[int, int] | None = None
    bad_word: tuple[int, int] | None = None
    stop_token: int | None = None
    priority: int = 0
    tenant: str = ""
    salt: str = ""
    hint: CacheHint | None = None
    guesses: int | None = None
    gap: int = 0
    leaves: int | None = None
    """After so many tokens its client goes away."""
    replayed: int = 0
    """So many tokens came from an engine that has ended since."""

    def requests(self, name: str, params: SamplingParams) -> list[Request]:
        return build_requests(
            name,
            list(self.prompt),
            params,
            LIMITS,
            SeedSource(len(self.prompt)),
            cache_salt=self.salt,
            cache_hint=self.hint,
            num_speculative_tokens=self.guesses,
            priority=self.priority,
            tenant=self.tenant,
        )


def _prompts() -> st.SearchStrategy[tuple[int, ...]]:
    base = [(7 * i * i + 3 * i) % END for i in range(64)]
    tail = st.lists(st.integers(0, END), min_size=1, max_size=12)
    stem = st.sampled_from([0, 0, 5, 15, 16, 17, 32, 40])
    return st.builds(lambda n, repeats, t: tuple(base[:n] + t * repeats), stem, st.sampled_from([1, 1, 4]), tail)


PERSON = {"type": "object", "properties": {"a": {"enum": [1, 22, "x"]}}, "required": ["a"]}
CALLS = FORMATS["hermes"].form([("buy", PERSON, True), ("no", {"type": "object", "maxProperties": 0}, True)], True)
FORMS = [
    StructuredOutputsParams(json_object=True),
    StructuredOutputsParams(json=PERSON),
    StructuredOutputsParams(regex="[A-Z]{2,4}(, [a-z]+)*"),
    StructuredOutputsParams(choice=["Yes", "No", "Not that I know of"]),
    StructuredOutputsParams(calls=CALLS),
    StructuredOutputsParams(regex="(ab|ac){3,9}", calls=CALLS),
    StructuredOutputsParams(choice=["Yes", "No"], reasoning=("", "#")),
]


@st.composite
def _params(draw: st.DrawFn) -> SamplingParams:
    """Each of them left alone as often as not, so that few stand together and all do at times."""

    def some(usual: Any, *others: Any) -> Any:
        return draw(st.sampled_from([usual] * len(others) + list(others)))

    most = draw(st.integers(1, 40))
    form = some(None, *FORMS) if draw(st.booleans()) else None
    free = form is None
    return SamplingParams(
        n=some(1, 2, 3),
        presence_penalty=some(0.0, -1.0, 0.7),
        frequency_penalty=some(0.0, -0.5, 1.1),
        repetition_penalty=some(1.0, 0.8, 1.3),
        temperature=some(0.0, 0.6, 1.0, 2.0),
        top_p=some(1.0, 0.3, 0.8),
        top_k=some(0, 1, 2, 7),
        min_p=some(0.0, 0.02, 0.3),
        seed=some(None, 0, -3, 2**62),
        stop_token_ids=some((), (5,), tuple(range(0, 40, 3))),
        ignore_eos=some(False, True) if free else False,
        max_tokens=most,
        min_tokens=draw(st.integers(0, most)) if free and draw(st.booleans()) else 0,
        logprobs=some(None, 0, 3),
        prompt_logprobs=some(None, 0, 2),
        logit_bias=some(None, {3: 4.0}, {END: 6.0}, {8: -100.0, 9: 100.0}),
        structured_outputs=form,
        skip_special_tokens=some(True, False),
        include_stop_str_in_output=some(False, True),
        allowed_token_ids=some(None, (1, 2, 3, END), tuple(range(20, 60))) if free else None,
        bad_words_token_ids=some((), ((4,),), ((2, 3), (3, 2, 2))),
    )


def _asked() -> st.SearchStrategy[Asked]:
    place = st.one_of(st.none(), st.tuples(st.integers(0, 20), st.integers(1, 3)))
    return st.builds(
        Asked,
        _prompts(),
        _params(),
        stop=place,
        bad_word=place,
        stop_token=st.one_of(st.none(), st.integers(0, 20)),
        priority=st.sampled_from([0, 0, -1, 2]),
        tenant=st.sampled_from(["", "", "a"]),
        salt=st.sampled_from(["", "", "", "s"]),
        hint=st.sampled_from([None, None, CacheHint(pin=True), CacheHint(ttl_s=0.01)]),
        guesses=st.sampled_from([None, None, None, 0, 1, 3]),
        gap=st.integers(0, 4),
        leaves=st.one_of(st.none(), st.none(), st.integers(0, 20)),
        replayed=st.sampled_from([0, 0, 0, 1, 4, 9]),
    )


# How the engine is set up, who guesses and what goes wrong


@dataclasses.dataclass(frozen=True)
class Script:
    """A drafter that knows what is coming. right: whether the guess at each position is, over and over."""

    right: tuple[bool, ...]
    instead: str
    vocab_size: int = VOCAB
    end: int = END

    def drafter(self, texts: list[list[int]]) -> Scripted:
        return Scripted(self, texts)


class Scripted:
    costly, copy = False, None

    def __init__(self, script: Script, texts: list[list[int]]) -> None:
        self._script, self._texts = script, texts

    def propose(self, contexts: Any) -> list[Proposal]:
        return [self._guess(context.tokens.tolist(), context.most) for context in contexts]

    def remember(self, namespace: Any, tokens: Any, prompt_len: int) -> None:
        pass

    def _guess(self, known: list[int], most: int) -> Proposal:
        ahead = next((text[len(known) :] for text in self._texts if text[: len(known)] == known), [])
        ahead = [*ahead, self._script.end, *known[-1:] * most][:most]
        right = self._script.right
        guessed = [
            token if right[(len(known) + i) % len(right)] else self._wrong(token, known[-1])
            for i, token in enumerate(ahead)
        ]
        return Proposal(guessed, [0.99] * len(guessed)) if guessed else NOTHING

    def _wrong(self, token: int, last: int) -> int:
        script = self._script
        instead = {"next": token + 1, "end": script.end, "again": last, "zero": 0}[script.instead] % script.vocab_size
        return instead if instead != token else (token + 1) % script.vocab_size


@dataclasses.dataclass(frozen=True)
class Setup:
    model: tuple[Any, ...] = ("q8", "int8", (None, None), "auto")
    """Weights as stored, type of the cache, windows of the layers, quantization."""
    threads: int = 1
    budget: int = 128
    num_blocks: int = 64
    caching: bool = False
    depth: int = 1
    host: int = 0
    disk: bool = False
    target_itl_ms: float | None = None
    tick: float = 1e-3
    max_preemptions: int = 3
    most: int = 8
    guesser: str | Script | None = None
    preempt_every: int = 0
    swap: bool = False
    fails: tuple[tuple[int, int], ...] = ()
    """At which runs of the program, and how many in a row, it raises."""

    @property
    def may_break(self) -> bool:
        return any(many > 1 for _, many in self.fails) or len(self.fails) > 1


MODELS = [
    ("f32", "fp32", (None, None), "auto"),
    ("bf16", "bf16", (None, None), "auto"),
    ("q8", "int8", (None, None), "auto"),
    ("q4", "bf16", (None, None), "auto"),
    ("q4", "int8", (None, 20), "auto"),
    ("q8", "bf16", (20, 20), "auto"),
    ("bf16", "int8", (None, None), "none"),
    ("bf16", "bf16", (20, None), "int4"),
    ("f32", "int8", (None, None), "int8"),
]
SCRIPTS = st.builds(
    Script,
    st.lists(st.booleans(), min_size=1, max_size=6).map(tuple),
    st.sampled_from(["next", "end", "again", "zero"]),
)


def _apart(fails: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """So many in a row that each request of a step is found at fault are the device's, and end the engine."""
    return tuple((first + 10 * n, many) for n, (first, many) in enumerate(sorted(fails)))


SETUPS = st.builds(
    Setup,
    model=st.sampled_from(MODELS),
    threads=st.sampled_from([1, 2]),
    budget=st.sampled_from([6, 7, 16, 33, 128]),
    num_blocks=st.sampled_from([ENOUGH, ENOUGH + 1, 12, 64]),
    caching=st.booleans(),
    depth=st.sampled_from([1, 2, 3]),
    host=st.sampled_from([0, 0, 6, 40]),
    disk=st.booleans(),
    target_itl_ms=st.sampled_from([None, None, 2.0]),
    tick=st.sampled_from([1e-3, 0.4]),
    max_preemptions=st.sampled_from([0, 3]),
    most=st.integers(1, 9),
    guesser=st.one_of(SCRIPTS, SCRIPTS, st.sampled_from(["ngram", "suffix", "itself", "a stranger"])),
    preempt_every=st.sampled_from([0, 0, 3, 5]),
    swap=st.booleans(),
    fails=st.lists(st.tuples(st.integers(0, 40), st.sampled_from([1, 1, 2, 3])), max_size=2).map(_apart),
)


class Failing:
    """A program that raises at some of its runs, before or after it has computed."""

    def __init__(self, program: Any, fails: tuple[tuple[int, int], ...]) -> None:
        self._program = program
        self._at = {run for first, many in fails for run in range(first, first + many)}
        self._runs = count()

    def run(self) -> Any:
        now = next(self._runs)
        if now in self._at and now % 2:
            raise RuntimeError("an injected failure")
        logits = self._program.run()
        if now in self._at:
            raise RuntimeError("an injected failure")
        return logits


@functools.cache
def _program(model: tuple[Any, ...], seed: int = 0) -> Any:
    scheme, kv_dtype, windows, quantization = model
    return tiny_program(scheme, kv_dtype=kv_dtype, windows=windows, seed=seed, quantization=quantization)


def _copy(program: Any) -> Any:
    """Whose matrices may be taken."""
    return dataclasses.replace(program, matrices=dict(program.matrices))


def device(setup: Setup, folder: Path | None) -> LocalExecutor:
    program, draft = _copy(_program(setup.model)), None
    groups = len(program.kv)
    windows: tuple[int | None, ...] = tuple(dict.fromkeys(setup.model[2]))
    if setup.guesser in ("itself", "a stranger"):
        guesser = _copy(_program(setup.model, seed=int(setup.guesser == "a stranger")))
        guesser.kv = tuple(dataclasses.replace(layout, noted=True) for layout in guesser.kv)
        windows += (None,) * len(guesser.kv)
        groups += len(guesser.kv)
        draft = DraftModel(guesser, cpu_device(setup.threads), MAX_LEN - 30)
    executor = assemble(
        program,
        cpu_device(setup.threads),
        num_slots=SLOTS,
        num_blocks=(setup.num_blocks,) * groups,
        windows=windows,
        max_model_len=MAX_LEN,
        max_tokens=setup.budget,
        depth=setup.depth,
        compile_grammar=GRAMMARS.compile,
        host_blocks=(setup.host,) * groups if setup.host else (),
        disk=DiskSpace(folder, 1 << 30) if folder is not None and setup.host else None,
        draft=draft,
    )
    if setup.fails:
        executor._runner._program = Failing(executor._runner._program, setup.fails)
    return executor


def engine_on(executor: LocalExecutor, setup: Setup, drafter: Drafter | None) -> Engine:
    config = Config(
        max_num_seqs=SLOTS,
        max_num_batched_tokens=setup.budget,
        enable_prefix_caching=setup.caching or setup.host > 0,
        pipeline_depth=setup.depth,
        target_itl_ms=setup.target_itl_ms,
        max_preemptions=setup.max_preemptions,
        num_speculative_tokens=setup.most,
    )
    forms = FormsUnderWay(GRAMMARS.compile)
    return Engine(executor, config, drafter=drafter, disk=executor.disk, forms=forms, fingerprint="tiny")


def begin(request: Request, right: Choice, replayed: int) -> tuple[Request, Choice]:
    """A request and its answer, of which so many tokens are here already if there are more to come."""
    choice = Choice.of(request, Text(request.params.skip_special_tokens))
    if replayed and replayed < len(right.token_ids):
        tokens, scores = right.token_ids[:replayed], right.logprobs and right.logprobs[:replayed]
        choice.push(OutputDelta(request.request_id, tokens, scores))
        request = msgspec.structs.replace(request, output_ids=tokens)
    return request, choice


def run(
    engine: Engine,
    asked: list[Asked],
    wanted: list[tuple[SamplingParams, list[Choice]]],
    setup: Setup,
    round_: int,
) -> list[list[Choice]]:
    """The answers, by client and choice."""
    clock = (setup.tick * i for i in count(1)).__next__
    begun = [
        [
            begin(request, right, one.replayed)
            for request, right in zip(one.requests(f"{round_}.{n}", its), all_right, strict=True)
        ]
        for n, (one, (its, all_right)) in enumerate(zip(asked, wanted, strict=True))
    ]
    coming = [(one, [request for request, _ in group]) for one, group in zip(asked, begun, strict=True)]
    answers = [[choice for _, choice in group] for group in begun]
    by_id = {request.request_id: choice for group in begun for request, choice in group}
    leaving = {r.request_id: one.leaves for one, group in coming for r in group if one.leaves is not None}
    gap = steps = 0
    while coming or engine.has_work:
        while coming and (gap >= coming[0][0].gap or not engine.has_work):
            for request in coming.pop(0)[1]:
                engine.add(request, clock())
            gap = 0
        gap += 1
        steps += 1
        while engine.begin_step(clock()):
            pass
        # A step is under way: this is when clients leave and others need the room.
        gone = [name for name, most in leaving.items() if len(by_id[name].token_ids) >= most]
        engine.abort(gone, clock())
        for name in gone:
            del leaving[name]
        running = engine._slots.order
        if setup.preempt_every and steps % setup.preempt_every == 0 and len(running) > 1 and steps < 80:
            engine._scheduler._roster.preempt(engine._slots[int(running[-1])], swap=setup.swap and setup.host > 0)
        for delta in engine.finish_step(clock):
            choice = by_id[delta.request_id]
            choice.push(delta)
            if choice.finished and delta.finish_reason is None:
                engine.abort([delta.request_id], clock())
    assert engine.stats().blocks_used == 0
    return answers


def told(choice: Choice) -> Any:
    names = ("text", "token_ids", "logprobs", "prompt_logprobs", "finish_reason", "stop_reason")
    return {name: getattr(choice, name) for name in names}


@functools.lru_cache(maxsize=4)
def _plain(model: tuple[Any, ...]) -> LocalExecutor:
    return device(Setup(model=model), None)


def alone(model: tuple[Any, ...], one: Asked) -> tuple[SamplingParams, list[Choice]]:
    """Its parameters, those included that are taken from an answer without them, and what it is answered."""
    setup, executor = Setup(model=model), _plain(model)

    def answer(params: SamplingParams) -> list[Choice]:
        found: list[Choice] = []
        for request in one.requests("alone", params):
            engine = engine_on(executor, setup, None)
            choice = Choice.of(request, Text(params.skip_special_tokens))
            engine.add(request, 0.0)
            while engine.has_work:
                for delta in engine.step(lambda: 0.0):
                    choice.push(delta)
            found.append(choice)
        return found

    params = one.params
    if one.stop is None and one.bad_word is None and one.stop_token is None:
        return params, answer(params)
    first = answer(params)[0]
    changes: dict[str, Any] = {}
    if one.stop is not None and (text := first.text[one.stop[0] :][: one.stop[1]]):
        changes["stop"] = (text,)
    if one.stop_token is not None and one.stop_token < len(first.token_ids):
        changes["stop_token_ids"] = (*params.stop_token_ids, first.token_ids[one.stop_token])
    if one.bad_word is not None and (word := first.token_ids[one.bad_word[0] :][: one.bad_word[1]]):
        changes["bad_words_token_ids"] = (*params.bad_words_token_ids, word)
    params = msgspec.structs.replace(params, **changes)
    return params, answer(params)


def check(asked: list[Asked], setup: Setup) -> None:
    """Cold and warm, every answer is what it is alone, or its beginning where its client left or a step failed again
    and again because of it, as far as can be told."""
    wanted = [alone(setup.model, one) for one in asked]
    texts = [[*one.prompt, *choice.token_ids] for one, (_, its) in zip(asked, wanted, strict=True) for choice in its]
    with tempfile.TemporaryDirectory() as folder:
        executor = device(setup, Path(folder) if setup.disk else None)
        try:
            guesser = setup.guesser
            drafter = guesser.drafter(texts) if isinstance(guesser, Script) else lookup_drafter(str(guesser))
            engine = engine_on(executor, setup, drafter or executor.drafter)
            for round_ in range(2):
                got = run(engine, asked, wanted, setup, round_)
                for one, (_, expected), answers in zip(asked, wanted, got, strict=True):
                    for choice, right in zip(answers, expected, strict=True):
                        compare(one, choice, right, setup)
        finally:
            executor.close()


def compare(one: Asked, choice: Choice, right: Choice, setup: Setup) -> None:
    assert 0 <= choice.accepted <= min(choice.drafted, len(choice.token_ids)), one
    if one.guesses == 0 or setup.guesser is None:
        assert choice.drafted == 0
    left = one.leaves is not None and choice.finish_reason is FinishReason.ABORT
    broke = setup.may_break and choice.finish_reason is FinishReason.ERROR
    if not left and not broke:
        assert told(choice) == told(right), one
        return
    assert right.token_ids[: len(choice.token_ids)] == choice.token_ids, one
    # What is held back for a stop string is let go at the end, whatever comes of it in the whole answer.
    stop = right.stop_reason if isinstance(right.stop_reason, str) else ""
    assert (right.text + stop).startswith(choice.text), one
    if choice.logprobs is not None and right.logprobs is not None:
        assert right.logprobs[: len(choice.logprobs)] == choice.logprobs, one


WORLDS = st.tuples(st.lists(_asked(), min_size=1, max_size=6), SETUPS)


def forget_devices() -> None:
    """They hold threads and the kernels' memory."""
    _plain.cache_clear()
