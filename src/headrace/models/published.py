"""Published models by name, as far as their config.json decides sizes and speed: what a plan needs to know of a model
that nobody has fetched. They pass through the same families as a checkpoint's own config.json.

Sources: config.json of the checkpoints on the Hugging Face hub. Names of one shape (Llama 3, 3.1, 3.3) are one entry;
they differ in context only.
"""

import difflib
import re
from functools import cache
from pathlib import Path
from typing import Any

from headrace.core.errors import ModelError
from headrace.core.model_spec import ModelSpec
from headrace.models.families.family import Fields
from headrace.models.families.registry import family_of_config


def _config(
    architecture: str,
    layers: int,
    hidden: int,
    mlp: int,
    heads: tuple[int, int],
    vocabulary: int,
    context: int,
    **others: Any,
) -> dict[str, Any]:
    """heads: of queries, of keys and values."""
    return {
        "architectures": [f"{architecture}ForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "vocab_size": vocabulary,
        "max_position_embeddings": context,
        "hidden_act": "silu",
        **others,
    }


def _llama(layers: int, hidden: int, mlp: int, heads: int, **others: Any) -> dict[str, Any]:
    return _config("Llama", layers, hidden, mlp, (heads, 8), 128256, 131072, rope_theta=500000.0, **others)


def _qwen3(layers: int, hidden: int, mlp: int, heads: tuple[int, int], **others: Any) -> dict[str, Any]:
    kind = "Qwen3Moe" if "num_experts" in others else "Qwen3"
    shared = {"head_dim": 128, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6}
    return _config(kind, layers, hidden, mlp, heads, 151936, 40960, **shared, **others)


_QWEN3_EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True}

CONFIGS: dict[str, dict[str, Any]] = {
    "smollm2-135m": _config("Llama", 30, 576, 1536, (9, 3), 49152, 8192, rope_theta=100000.0, tie_word_embeddings=True),
    "llama-3.2-1b": _llama(16, 2048, 8192, 32, head_dim=64, tie_word_embeddings=True),
    "llama-3.2-3b": _llama(28, 3072, 8192, 24, head_dim=128, tie_word_embeddings=True),
    "llama-3-8b": _llama(32, 4096, 14336, 32),
    "llama-3-70b": _llama(80, 8192, 28672, 64),
    "llama-3.1-405b": _llama(126, 16384, 53248, 128),
    "qwen3-0.6b": _qwen3(28, 1024, 3072, (16, 8), tie_word_embeddings=True),
    "qwen3-8b": _qwen3(36, 4096, 12288, (32, 8)),
    "qwen3-14b": _qwen3(40, 5120, 17408, (40, 8)),
    "qwen3-32b": _qwen3(64, 5120, 25600, (64, 8)),
    "qwen3-30b-a3b": _qwen3(48, 2048, 6144, (32, 4), moe_intermediate_size=768, **_QWEN3_EXPERTS),
    "qwen3-235b-a22b": _qwen3(94, 4096, 12288, (64, 4), moe_intermediate_size=1536, **_QWEN3_EXPERTS),
    "mixtral-8x7b": _config(
        "Mixtral", 32, 4096, 14336, (32, 8), 32000, 32768, num_local_experts=8, num_experts_per_tok=2
    ),
    "deepseek-v3": _config(
        "DeepseekV3",
        61,
        7168,
        18432,
        (128, 128),
        129280,
        163840,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        moe_intermediate_size=2048,
        n_routed_experts=256,
        n_shared_experts=1,
        num_experts_per_tok=8,
        first_k_dense_replace=3,
    ),
}

_SAME_SHAPE = {
    "llama-3.1-8b": "llama-3-8b",
    "llama-3.1-70b": "llama-3-70b",
    "llama-3.3-70b": "llama-3-70b",
    "llama-3-405b": "llama-3.1-405b",
    "deepseek-r1": "deepseek-v3",
}
_ENDINGS = re.compile(r"-(instruct|base|chat|hf|fp8|bf16|awq|gptq|int4|v0\.1|2507|0324|0528)$")


@cache
def published_model(name: str) -> ModelSpec:
    """The model of that name, also as the hub writes it (meta-llama/Llama-3.1-70B-Instruct). ModelError with the
    nearest for one that is not known."""
    plain = name.rpartition("/")[2].strip().lower().replace("_", "-").removeprefix("meta-")
    while _ENDINGS.search(plain):
        plain = _ENDINGS.sub("", plain)
    plain = _SAME_SHAPE.get(plain, plain)
    if plain not in CONFIGS:
        near = difflib.get_close_matches(plain, [*CONFIGS, *_SAME_SHAPE], n=1)
        hint = f"; the nearest is {near[0]}" if near else ""
        raise ModelError(f"model {name!r} is not known; known are {', '.join(CONFIGS)}{hint}")
    path = Path(f"{plain}/config.json")
    return family_of_config(CONFIGS[plain]["architectures"], path).from_config(Fields(CONFIGS[plain], path))
