"""The one place that wires: settings, a model and a machine become an engine in this process. Policy and mechanism meet
nowhere else.
"""

import dataclasses
import hashlib
import importlib
import logging
from pathlib import Path

from headrace import __version__
from headrace.core.config import Config
from headrace.core.errors import ConfigError, MachineError
from headrace.core.model_spec import KVGroup, ModelSpec
from headrace.engine.engine import Engine
from headrace.engine.executor import Capacity
from headrace.engine.tenant_limits import read_limits
from headrace.engine.wire import Ready
from headrace.models.grammar import GrammarCompiler
from headrace.models.loader import LoadedModel, load_model, lower_model
from headrace.models.tokenizer import Tokenizer
from headrace.ops.cpu import VERSION as KERNELS_VERSION
from headrace.ops.cpu import available_isas
from headrace.ops.cpu_weights import CpuWeights, Progress
from headrace.ops.program import Program
from headrace.policy.speculation import Drafter
from headrace.worker.assembly import DiskSpace, DraftModel, activation_bytes, assemble
from headrace.worker.devices import cpu_device
from headrace.worker.drafters.by_name import lookup_drafter
from headrace.worker.forms import FormsUnderWay
from headrace.worker.machine import allowed_processors, available_memory, this_machine
from headrace.worker.memory_plan import MemoryPlan, mib, plan_memory
from headrace.worker.weights import ready_weights

_notes = logging.getLogger("headrace.notes")
"""What whoever starts an engine should know of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine and what was decided on the way to it. config is resolved, its model a local path."""

    engine: Engine
    config: Config
    spec: ModelSpec
    plan: MemoryPlan
    ready: Ready
    grammars: GrammarCompiler
    capacity: Capacity
    """What its device holds: enough for an engine over another device to plan the same steps."""


def build_engine(config: Config, *, progress: Progress | None = None, drafter: Drafter | None = None) -> BuiltEngine:
    """Load the model into this process. config comes from locate_model(). drafter: who guesses, instead of who the
    config names. Raises ConfigError, ModelError or MachineError."""
    limits = None if config.tenant_limits is None else read_limits(Path(config.tenant_limits))
    machine, available = this_machine(), available_memory()
    threads = machine.threads if config.threads is None else config.threads
    if threads > machine.threads:
        raise ConfigError(
            f"threads must be at most {machine.threads}, the cores that this process may use by affinity and by its "
            f"container's quota, got {threads}",
            field="threads",
        )
    loaded = load_model(Path(config.model))
    program, weights = _load(config, loaded, threads, available, progress)
    groups, taken = loaded.spec.kv_groups, _weight_bytes(program, weights)
    activations = activation_bytes(program, config.max_num_batched_tokens, config.max_num_batched_tokens)
    draft, draft_weights = None, 0
    if config.speculative_model is not None:
        draft, draft_groups, draft_weights = _draft_model(config, loaded.spec, threads, available - taken, progress)
        groups += draft_groups
        taken += draft_weights
        activations += activation_bytes(draft.program, config.max_num_batched_tokens, config.max_num_seqs)
    plan = plan_memory(
        config,
        groups,
        max_position=loaded.spec.max_position,
        weight_bytes=taken,
        activation_bytes=activations,
        allowed_bytes=machine.memory_bytes,
        available_bytes=available,
        draft_weight_bytes=draft_weights,
    )
    if config.max_model_len is None and plan.max_model_len < loaded.spec.max_position:
        _notes.warning(
            "%s: its context is cut from %d tokens to %d, which is what the KV cache holds of one request",
            config.model,
            loaded.spec.max_position,
            plan.max_model_len,
        )
    grammars = GrammarCompiler(lambda: _tokenizer(config.model), program.vocab_size)
    executor = assemble(
        program,
        cpu_device(threads, config.isa, weights),
        num_slots=config.max_num_seqs,
        num_blocks=plan.num_blocks,
        windows=tuple(group.window for group in groups),
        max_model_len=plan.max_model_len,
        max_tokens=config.max_num_batched_tokens,
        depth=config.pipeline_depth,
        compile_grammar=grammars.compile,
        host_blocks=plan.host_blocks,
        disk=_disk_space(config),
        draft=None if draft is None else draft.up_to(plan.max_model_len),
    )
    isa = available_isas()[0] if config.isa == "auto" else config.isa
    kernels = f"{isa} {KERNELS_VERSION}"
    ready = Ready(
        max_model_len=plan.max_model_len,
        vocab_size=program.vocab_size,
        fingerprint=_fingerprint(program.fingerprint, kernels),
        blocks_total=sum(plan.num_blocks),
        block_size=config.block_size,
        describe={
            "version": __version__,
            "model": config.model,
            "family": loaded.spec.family,
            "parameters": loaded.spec.num_parameters,
            "quantization": config.quantization,
            "kv_cache_dtype": config.kv_cache_dtype,
            "kernels": kernels,
            "threads": threads,
            "processor": machine.name,
        },
    )
    engine = Engine(
        executor,
        config,
        limits=limits,
        drafter=drafter or executor.drafter or lookup_drafter(config.speculate),
        disk=executor.disk,
        forms=FormsUnderWay(grammars.compile),
        fingerprint=ready.fingerprint,
    )
    return BuiltEngine(engine, config, loaded.spec, plan, ready, grammars, executor.capacity)


def _load(
    config: Config, loaded: LoadedModel, threads: int, available: int, progress: Progress | None
) -> tuple[Program, CpuWeights]:
    """A model's program, and its weights as the kernels read them."""
    _check_weights_fit(config, loaded, available)
    program = lower_model(loaded, config, config.max_model_len, threads=threads)
    weights = ready_weights(
        program,
        threads=threads,
        cpus=allowed_processors() if config.pin_threads else (),
        origin=loaded.path,
        stored_bytes=sum(loaded.weights.source.stored_bytes().values()),
        limit=int(config.packed_cache_gib * 2**30),
        progress=progress,
    )
    for note in program.notes:
        _notes.warning("%s: %s", loaded.path, note)
    return program, weights


def _weight_bytes(program: Program, weights: CpuWeights) -> int:
    return weights.nbytes + sum(vector.nbytes for vector in program.vectors.values())


def _draft_model(
    config: Config, spec: ModelSpec, threads: int, available: int, progress: Progress | None
) -> tuple[DraftModel, tuple[KVGroup, ...], int]:
    """The speculative_model, its KV groups as the engine keeps them, and the bytes of its weights."""
    model = config.speculative_model
    assert model is not None
    loaded = load_model(Path(model))
    longest, size = loaded.spec.max_position, loaded.spec.vocab_size
    if size != spec.vocab_size or not _same_tokens(config.model, model, size):
        others = "others" if size == spec.vocab_size else str(size)
        raise ConfigError(
            f"speculative_model must have the model's own {spec.vocab_size} tokens, so that what it guesses means the "
            f"same: {model} has {others}",
            field="speculative_model",
        )
    program, weights = _load(config, loaded, threads, available, progress)
    if longest < min(config.max_model_len or spec.max_position, spec.max_position):
        _notes.warning("%s: it reads at most %d tokens, and longer texts get no guesses of it", model, longest)
    # It lags behind, and may yet need what lies behind its windows.
    groups = tuple(dataclasses.replace(group, window=None, noted=True) for group in loaded.spec.kv_groups)
    program.kv = tuple(dataclasses.replace(layout, noted=True) for layout in program.kv)
    draft = DraftModel(program, cpu_device(threads, config.isa, weights), longest)
    return draft, groups, _weight_bytes(program, weights)


def _same_tokens(model: str, guesser: str, vocab_size: int) -> bool:
    """Whether a token means the same to both, by some thousands of them."""
    one, other = _tokenizer(model), _tokenizer(guesser)
    return all(one.token_bytes(t) == other.token_bytes(t) for t in range(0, vocab_size, 1 + vocab_size // 4096))


def _tokenizer(model: str) -> Tokenizer:
    # Not at the top: few engines need a model's text side, and it would be a tenth of what they import.
    text: Tokenizer = importlib.import_module("headrace.models.text").load_text(Path(model)).tokenizer
    return text


def _disk_space(config: Config) -> DiskSpace | None:
    if config.kv_offloading_dir is None:
        return None
    return DiskSpace(Path(config.kv_offloading_dir), int(config.kv_offloading_dir_size * 2**30))


def _check_weights_fit(config: Config, loaded: LoadedModel, available: int) -> None:
    """Refuse before loading what would not fit: a parameter takes at least half a byte; two or four as a float."""
    spec = loaded.spec
    needed = spec.num_parameters // 2
    if config.quantization == "none":
        halves = all(form.scheme == "bf16" for form in loaded.weights.forms(spec))
        needed = spec.num_parameters * (2 if halves else 4)
    if needed > available:
        raise MachineError(
            f"this model's {spec.num_parameters} parameters need at least {mib(needed)} MiB with quantization="
            f"{config.quantization}, but only {mib(available)} MiB can be used here: choose a smaller model"
        )


def _fingerprint(numerics: str, kernels: str) -> str:
    """What a generated token depends on beside the request: weights, quantization and KV type (as lowering hashed
    them), the kernel set and our version."""
    return hashlib.blake2b(f"{numerics} {kernels} {__version__}".encode(), digest_size=16).hexdigest()
