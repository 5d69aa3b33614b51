"""Models of transformers written as GGUF the way llama.cpp's converter writes each architecture: tensor names by the
gguf package's own map, norms of Gemma stored whole, rotary pairs of q and k adjacent where it wants them so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import transformers
from tests.models_for_tests import pair_rope_rows

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
    "olmo2": "olmo2",
    "olmoe": "olmoe",
    "granite": "granite",
    "smollm3": "smollm3",
}
"""GGUF's general.architecture by transformers' model_type."""

_PAIRED = ("llama", "mistral", "mixtral", "granite", "smollm3")


def write_family_gguf(
    path: Path,
    model: transformers.PreTrainedModel,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    *,
    experts_apart: bool = False,
    more: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> None:
    """Matrices in `kind`, save routers; all else in float32. experts_apart: a tensor for each, as in early files.
    more: writes further settings."""
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, architecture)
    _write_settings(writer, config)
    more(writer)
    known = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(known, config.num_hidden_layers)
    for name, values in _tensors(model):
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        stored = stored if stored.endswith((".weight", ".bias")) else f"{stored}.weight"
        type_ = gguf.GGMLQuantizationType.F32 if values.ndim == 1 or "gate_inp" in stored else kind
        parts = {stored: values}
        if experts_apart and "_exps" in stored:
            parts = {stored.replace("_exps", f".{e}"): values[e] for e in range(len(values))}
        for part, content in parts.items():
            writer.add_tensor(part, gguf.quantize(content, type_), raw_dtype=type_)
    for which in ("short", "long"):
        factors = config.rope_parameters.get(f"{which}_factor")
        if factors:
            writer.add_tensor(f"rope_factors_{which}.weight", np.array(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(model: transformers.PreTrainedModel) -> Iterator[tuple[str, np.ndarray]]:
    config = model.config
    for name, weight in model.named_parameters():
        values = weight.detach().numpy()
        if config.model_type.startswith("gemma") and name.endswith("norm.weight"):
            values = values + 1
        if config.model_type in _PAIRED and (".q_proj." in name or ".k_proj." in name):
            heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
            values = pair_rope_rows(values, heads)
        if name.endswith("experts.gate_up_proj"):
            for part, half in zip(("gate_proj", "up_proj"), np.split(values, 2, axis=1), strict=True):
                yield name.replace("gate_up_proj", part), np.ascontiguousarray(half)
        else:
            yield name, np.ascontiguousarray(values)


def _write_settings(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None)
    if head_dim:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    _write_rope(writer, config)
    settings = {
        "attention_multiplier": writer.add_attention_scale,
        "embedding_multiplier": writer.add_embedding_scale,
        "residual_multiplier": writer.add_residual_scale,
        "logits_scaling": writer.add_logit_scale,
        "attn_logit_softcapping": writer.add_attn_logit_softcapping,
        "final_logit_softcapping": writer.add_final_logit_softcapping,
        "sliding_window": writer.add_sliding_window,
        "num_local_experts": writer.add_expert_count,
        "num_experts": writer.add_expert_count,
        "num_experts_per_tok": writer.add_expert_used_count,
        "moe_intermediate_size": writer.add_expert_feed_forward_length,
    }
    written = set()
    for name, write in settings.items():
        value = getattr(config, name, None)
        if value and write.__name__ not in written:
            written.add(write.__name__)
            write(value)


def _write_rope(writer: gguf.GGUFWriter, config: Any) -> None:
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    if config.model_type == "phi3":
        size = config.hidden_size // config.num_attention_heads
        writer.add_rope_dimension_count(int(rope.get("partial_rotary_factor", 1.0) * size))
        writer.add_rope_scaling_orig_ctx_len(rope.get("original_max_position_embeddings", 4096))
    if rope["rope_type"] == "longrope":
        original = rope["original_max_position_embeddings"]
        scale = config.max_position_embeddings / original
        stretched = float(np.sqrt(1 + np.log(scale) / np.log(original)))
        writer.add_rope_scaling_attn_factors(stretched if scale > 1 else 1.0)
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
