"""No token may change. What a request generates, bit for bit with its log-probabilities, is what it generates alone
on an idle engine: in any company, any chunk size, with any number of threads, from a cold or a warm prefix cache,
through preemptions, with guesses ahead right and wrong from every drafter, with steps under way, greedy or sampled,
free or held to a form, from quantized or float weights and KV blocks.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.letters import Letters
from tests.oracle import Oracle
from tests.tiny_models import VOCAB, tiny_program

from headrace.core.config import Config
from headrace.core.request import FinishReason, Request, SamplingParams
from headrace.core.structured import StructuredOutputsParams
from headrace.engine.engine import Engine
from headrace.engine.executor import Capacity
from headrace.models.grammar import GrammarCompiler, Vocabulary
from headrace.models.loader import load_model
from headrace.models.lowering import lower
from headrace.models.text import load_text
from headrace.ops.cpu import available_isas
from headrace.ops.program import Program
from headrace.policy.speculation import Drafter
from headrace.worker.assembly import DraftModel, assemble
from headrace.worker.devices import cpu_device
from headrace.worker.drafters.by_name import lookup_drafter
from headrace.worker.grammar import Compile
from headrace.worker.local_executor import LocalExecutor

pytestmark = pytest.mark.usefixtures("free_rows")
MAX_LEN = 96
THREADS = (1, 2, 3)
SLOTS = 6
BLOCK = 16
BLOCKS = 64
ENOUGH = MAX_LEN // BLOCK


class Smaller:
    """An executor that says it holds fewer blocks, so that one device serves pools of any size."""

    def __init__(self, executor: LocalExecutor, num_blocks: int) -> None:
        self._executor = executor
        groups = len(executor.capacity.num_blocks)
        self.capacity: Capacity = dataclasses.replace(executor.capacity, num_blocks=(num_blocks,) * groups)
        self.submit, self.collect = executor.submit, executor.collect
        self.horizon = executor.horizon


def executors(
    program: Program,
    windows: tuple[int | None, ...],
    compile_grammar: Compile,
    isa: str,
    guesser: Program | None = None,
) -> list[LocalExecutor]:
    """One device for each number of threads. The last takes steps on a thread of its own, as depth 2 needs."""
    if guesser is not None:
        guesser.kv = tuple(dataclasses.replace(layout, noted=True) for layout in guesser.kv)
        windows += (None,) * len(guesser.kv)
    return [
        assemble(
            _copy(program),
            cpu_device(threads, isa),
            num_slots=SLOTS,
            num_blocks=(BLOCKS,) * len(windows),
            windows=windows,
            max_model_len=MAX_LEN,
            max_tokens=128,
            depth=2 if threads == THREADS[-1] else 1,
            compile_grammar=compile_grammar,
            draft=None if guesser is None else DraftModel(_copy(guesser), cpu_device(threads, isa), MAX_LEN - 10),
        )
        for threads in THREADS
    ]


def _copy(program: Program) -> Program:
    """Whose matrices may be taken."""
    return dataclasses.replace(program, matrices=dict(program.matrices))


@dataclasses.dataclass(frozen=True)
class Setup:
    """How the engine is set up and driven; nothing in it may matter."""

    threads: int
    budget: int
    num_blocks: int
    caching: bool
    depth: int
    gaps: tuple[int, ...]
    guesses: int | str | None = None
    """Which drafter, or every how many-th token one gets wrong, 0 for none; None: there is no drafter."""


class Model:
    """Devices of one program, and what each request generates alone."""

    def __init__(
        self,
        program: Program,
        words: Vocabulary,
        windows: tuple[int | None, ...] = (None,),
        isa: str = "auto",
        guessers: dict[str, Program] | None = None,
    ) -> None:
        grammars = GrammarCompiler(lambda: words, program.vocab_size)
        self.devices = executors(program, windows, grammars.compile, isa)
        self.guessed_for = {
            name: executors(program, windows, grammars.compile, isa, guesser)
            for name, guesser in (guessers or {}).items()
        }
        self.vocab_size = program.vocab_size
        self._alone: dict[str, Any] = {}

    def alone(self, request: Request) -> Any:
        key = repr((request.prompt_ids, request.params, request.seed, request.choice))
        if key not in self._alone:
            setup = Setup(threads=1, budget=128, num_blocks=BLOCKS, caching=False, depth=1, gaps=())
            self._alone[key] = self.run([request], self.engine(setup), setup)[request.request_id]
        return self._alone[key]

    def engine(self, setup: Setup, drafter: Drafter | None = None) -> Engine:
        device = self.guessed_for.get(str(setup.guesses), self.devices)[THREADS.index(setup.threads)]
        executor = Smaller(device, setup.num_blocks)
        config = Config(
            max_num_seqs=SLOTS,
            max_num_batched_tokens=setup.budget,
            enable_prefix_caching=setup.caching,
            pipeline_depth=setup.depth,
        )
        return Engine(executor, config, drafter=drafter or device.drafter)

    def run(self, requests: list[Request], engine: Engine, setup: Setup) -> dict[str, Any]:
        """Add each request after its gap of steps; returns (tokens, logprobs, prompt logprobs, reason) of each."""
        out = {r.request_id: ([], [], [], []) for r in requests}
        waiting = list(zip(requests, (*setup.gaps, *[0] * len(requests)), strict=False))
        gap = 0
        while waiting or engine.has_work:
            while waiting and (gap >= waiting[0][1] or not engine.has_work):
                engine.add(waiting.pop(0)[0], 0.0)
                gap = 0
            gap += 1
            for delta in engine.step(lambda: 0.0):
                tokens, logprobs, prompt, reason = out[delta.request_id]
                tokens += delta.token_ids
                logprobs += delta.logprobs or []
                prompt += delta.prompt_logprobs or []
                if delta.finish_reason is not None:
                    reason.append((delta.finish_reason, delta.stop_token))
        assert engine.stats().blocks_used == 0
        return out


def prompts(vocab_size: int) -> st.SearchStrategy[list[int]]:
    """Prompts with common beginnings, so that prefixes are shared, sometimes to the block's edge."""
    base = [(7 * i * i + 3 * i) % vocab_size for i in range(64)]
    tail = st.lists(st.integers(0, vocab_size - 1), min_size=1, max_size=12)
    return st.builds(lambda n, t: base[:n] + t, st.sampled_from([0, 0, 5, 15, 16, 17, 32, 40]), tail)


FREE = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.7, 1.5]),
    top_p=st.sampled_from([1.0, 0.8]),
    top_k=st.sampled_from([0, 5]),
    min_p=st.sampled_from([0.0, 0.05]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    max_tokens=st.integers(1, 14),
    logprobs=st.sampled_from([0, 3]),
    prompt_logprobs=st.sampled_from([None, None, None, 2]),
    stop_token_ids=st.sampled_from([(), tuple(range(0, 40, 3))]),
    min_tokens=st.sampled_from([0, 1]),
    logit_bias=st.sampled_from([None, {3: 4.0}]),
)
FORMS = st.sampled_from(
    [{"json_object": True}, {"regex": "[A-Z]{2,4}(, [a-z]+)*"}, {"choice": ["Yes", "No", "Not that I know of"]}]
)
HELD = st.builds(
    lambda params, form: msgspec.structs.replace(
        params, min_tokens=0, structured_outputs=StructuredOutputsParams(**form)
    ),
    FREE,
    FORMS,
)
PARAMS = st.one_of(FREE, FREE, HELD)


def mixes(vocab_size: int) -> st.SearchStrategy[list[Request]]:
    def numbered(parts: list[tuple[list[int], SamplingParams, int, int]]) -> list[Request]:
        return [
            Request(f"r{i}", prompt, params, params.max_tokens or 0, seed, choice)
            for i, (prompt, params, seed, choice) in enumerate(parts)
        ]

    one = st.tuples(prompts(vocab_size), PARAMS, st.integers(0, 3), st.integers(0, 2))
    return st.lists(one, min_size=1, max_size=8).map(numbered)


SETUPS = st.builds(
    Setup,
    threads=st.sampled_from(THREADS),
    budget=st.sampled_from([6, 7, 16, 33, 128]),
    num_blocks=st.sampled_from([ENOUGH, ENOUGH + 1, 10, BLOCKS]),
    caching=st.booleans(),
    depth=st.sampled_from([1, 2]),
    gaps=st.lists(st.integers(0, 4), max_size=8).map(tuple),
    guesses=st.sampled_from([None, 0, 2, 5, "ngram", "suffix", "itself", "a stranger"]),
).map(lambda s: s if s.threads == THREADS[-1] else dataclasses.replace(s, depth=1))


def check(model: Model, requests: list[Request], setup: Setup) -> None:
    # Before the engine under test begins: both use the same device, and its cache must stay as that engine left it.
    alone = {request.request_id: model.alone(request) for request in requests}
    texts = (request.prompt_ids + alone[request.request_id][0] for request in requests)
    drafter = lookup_drafter(str(setup.guesses))
    if isinstance(setup.guesses, int):
        drafter = Oracle(texts, setup.guesses, model.vocab_size)
    engine = model.engine(setup, drafter)
    for warmth in ("cold", "warm"):
        assert model.run(requests, engine, setup) == alone, f"{warmth} cache"


TINY = {
    "f32 weights, fp32 cache": ("f32", "fp32", (None, None)),
    "bf16 weights, bf16 cache": ("bf16", "bf16", (None, None)),
    "q8 weights, int8 cache": ("q8", "int8", (None, None)),
    "q4 weights, bf16 cache": ("q4", "bf16", (None, None)),
    "q4 weights, int8 cache, a window": ("q4", "int8", (None, 20)),
    "bf16 weights, int8 cache": ("bf16", "int8", (None, None), "none"),
    "bf16 weights quantized to int4, bf16 cache": ("bf16", "bf16", (None, None), "int4"),
    "f32 weights quantized to int8, int8 cache": ("f32", "int8", (None, None), "int8"),
}


@functools.cache
def tiny(kind: str, isa: str = "auto") -> Model:
    scheme, kv_dtype, windows, *quantization = TINY[kind]
    program = tiny_program(scheme, kv_dtype=kv_dtype, windows=windows, quantization=(*quantization, "auto")[0])
    guessers = {
        name: tiny_program(scheme, kv_dtype=kv_dtype, windows=windows, seed=seed)
        for name, seed in (("itself", 0), ("a stranger", 1))
    }
    return Model(program, Letters(VOCAB), tuple(dict.fromkeys(windows)), isa, guessers)


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("kind", TINY)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(requests=mixes(VOCAB), setup=SETUPS)
def test_tiny_models(kind: str, isa: str, requests: list[Request], setup: Setup) -> None:
    check(tiny(kind, isa), requests, setup)


@pytest.fixture(scope="module", params=["as stored, bf16 cache", "float, fp32 cache", "as stored, int8 cache"])
def real(request, default_model):
    quantization = "none" if request.param.startswith("float") else "auto"
    kv_dtype = request.param.split()[-2]
    loaded = load_model(default_model)
    program = lower(
        loaded.spec,
        loaded.weights,
        quantization=quantization,
        kv_dtype=kv_dtype,
        block_size=BLOCK,
        max_positions=MAX_LEN,
    )
    return Model(program, load_text(default_model).tokenizer)


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), setup=SETUPS)
def test_the_default_model(real, data, setup):
    check(real, data.draw(mixes(real.vocab_size)), setup)


def test_preemption_is_forced_by_a_small_pool_and_changes_nothing():
    """The pools of the tests above are small enough: this one counts."""
    model = tiny("q8 weights, int8 cache")
    requests = [
        Request(f"r{i}", [i + 1] * 20, SamplingParams(temperature=1.0, max_tokens=40, logprobs=0), 40, seed=i)
        for i in range(SLOTS)
    ]
    setup = Setup(threads=2, budget=16, num_blocks=ENOUGH + 3, caching=False, depth=1, gaps=())
    engine = model.engine(setup)
    together = model.run(requests, engine, setup)
    assert engine.stats().preemptions > 0
    for request in requests:
        assert together[request.request_id] == model.alone(request)
        assert len(together[request.request_id][0]) == 40


def test_a_warm_cache_is_really_hit():
    model = tiny("q4 weights, bf16 cache")
    request = Request("r", list(range(50)), SamplingParams(temperature=0, max_tokens=5, logprobs=1), 5, seed=0)
    setup = Setup(threads=1, budget=128, num_blocks=BLOCKS, caching=True, depth=1, gaps=())
    engine = model.engine(setup)
    cold = model.run([request], engine, setup)
    warm = model.run([request], engine, setup)
    assert engine.stats().cached_tokens == len(request.prompt_ids) - 1
    assert cold == warm
    assert warm["r"][3] == [(FinishReason.LENGTH, None)]
