"""Models for tests: tiny random checkpoints made by transformers, the same written as GGUF, and a way to run a
program over one sequence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

from headrace.ops.program import Program
from headrace.ops.reference import ReferenceProgram
from headrace.ops.step import StepInputs

KINDS: dict[str, tuple[type, type]] = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "gemma2": (transformers.Gemma2Config, transformers.Gemma2ForCausalLM),
    "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
    "phi3": (transformers.Phi3Config, transformers.Phi3ForCausalLM),
    "olmo2": (transformers.Olmo2Config, transformers.Olmo2ForCausalLM),
    "granite": (transformers.GraniteConfig, transformers.GraniteForCausalLM),
    "smollm3": (transformers.SmolLM3Config, transformers.SmolLM3ForCausalLM),
    "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM),
    "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
    "olmoe": (transformers.OlmoeConfig, transformers.OlmoeForCausalLM),
}


def make_checkpoint(
    folder: Path,
    kind: str = "llama",
    *,
    dtype: torch.dtype = torch.float32,
    shards: int = 1,
    sharpness: float = 4.0,
    seed: int = 0,
    **settings: Any,
) -> transformers.PreTrainedModel:
    """Write a tiny random model into `folder` and return it in float32, computing what the stored weights say.
    sharpness scales queries and keys, so that attention has peaks as a trained model's has."""
    config_class, model_class = KINDS[kind]
    defaults: dict[str, Any] = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.15,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(seed)
    model = model_class(config_class(**{**defaults, **settings}))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                weight.copy_(torch.randn_like(weight) * 0.2 + (0 if name.endswith("bias") else 1))
            if (
                any(part in name for part in ("q_proj", "k_proj", "qkv_proj", "q_norm", "k_norm"))
                and "bias" not in name
            ):
                weight.mul_(sharpness**0.5)
    for weight in model.parameters():  # not model.to(): that would round the rope frequencies too
        weight.data = weight.data.to(dtype)
    total = sum(p.numel() * p.element_size() for p in model.parameters())
    model.save_pretrained(folder, max_shard_size=total if shards == 1 else total // shards)
    for weight in model.parameters():
        weight.data = weight.data.float()
    return model.eval()


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(
    path: Path,
    model: transformers.PreTrainedModel,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    *,
    extra: dict[str, np.ndarray] | None = None,
) -> None:
    """Write a model as llama.cpp's converter does, matrices quantized as `kind`; the model given is changed to hold
    the values that the file then stands for. extra: further tensors, in float32."""
    config = model.config
    writer = gguf.GGUFWriter(path, config.model_type)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    with torch.no_grad():
        for name, weight in model.named_parameters():
            stored = gguf.GGMLQuantizationType.F32 if weight.dim() == 1 else kind
            blocks = gguf.quantize(weight.numpy(), stored)
            values = gguf.dequantize(blocks, stored).reshape(weight.shape)
            weight.copy_(torch.from_numpy(values.copy()))
            if config.model_type == "llama" and (".q_proj." in name or ".k_proj." in name):
                heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
                blocks = pair_rope_rows(blocks, heads)
            writer.add_tensor(_gguf_name(name), blocks, raw_dtype=stored)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def pair_rope_rows(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as llama.cpp wants them: rotary pairs adjacent (its convert_hf_to_gguf.py, `permute`)."""
    return rows.reshape(heads, 2, len(rows) // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def _gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{GGUF_NAMES[part]}.{kind}"
    return f"{GGUF_NAMES[stem]}.{kind}"


def reference_log_probabilities(model: transformers.PreTrainedModel, tokens: np.ndarray) -> np.ndarray:
    """float32 [positions, vocabulary] by transformers."""
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0]
    return torch.log_softmax(logits.float(), -1).numpy()


def step_inputs(program: Program, positions: int, *, num_slots: int = 1) -> StepInputs:
    """Inputs for `num_slots` sequences of up to `positions`, each with blocks of its own, in an order that is not
    their natural one."""
    blocks = -(-positions // program.kv[0].block_size)
    inputs = StepInputs(
        program.kv,
        tuple(num_slots * blocks for _ in program.kv),
        max_tokens=positions * num_slots,
        num_slots=num_slots,
        max_model_len=positions,
    )
    for group in range(len(program.kv)):
        order = np.random.default_rng(group).permutation(num_slots * blocks).astype(np.int32)
        inputs.tables[group][:] = order.reshape(num_slots, blocks)
    return inputs


def program_log_probabilities(
    program: Program, tokens: np.ndarray, *, chunk: int = 10**9, provider: Callable[..., Any] = ReferenceProgram
) -> np.ndarray:
    """float32 [positions, vocabulary] by the numpy reference or another provider, `chunk` tokens a step."""
    inputs = step_inputs(program, len(tokens))
    runner = provider(program, inputs)
    rows = []
    for start in range(0, len(tokens), chunk):
        count = min(chunk, len(tokens) - start)
        inputs.tokens[:count] = tokens[start : start + count]
        inputs.positions[:count] = np.arange(start, start + count)
        inputs.entry_slot[0], inputs.entry_row[0], inputs.entry_start[0], inputs.entry_count[0] = 0, 0, start, count
        inputs.logit_rows[:count] = np.arange(count)
        inputs.rows = inputs.logits = count
        inputs.entries = 1
        rows.append(log_softmax(runner.run().copy()))
    return np.concatenate(rows)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits - logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def transformers_llama_of_gguf(path: Path) -> transformers.PreTrainedModel:
    """A Llama GGUF file in transformers, float32, read and dequantized by the gguf package."""
    reader = gguf.GGUFReader(path)

    def setting(name: str) -> Any:
        return reader.fields[f"llama.{name}"].contents()

    tensors = {t.name: gguf.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    config = transformers.LlamaConfig(
        vocab_size=len(tensors["token_embd.weight"]),
        hidden_size=setting("embedding_length"),
        intermediate_size=setting("feed_forward_length"),
        num_hidden_layers=setting("block_count"),
        num_attention_heads=setting("attention.head_count"),
        num_key_value_heads=setting("attention.head_count_kv"),
        max_position_embeddings=setting("context_length"),
        rms_norm_eps=setting("attention.layer_norm_rms_epsilon"),
        rope_theta=setting("rope.freq_base"),
        tie_word_embeddings="output.weight" not in tensors,
    )
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            values = tensors[_gguf_name(name)]
            if ".q_proj." in name or ".k_proj." in name:
                heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
                values = values.reshape(heads, -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
            weight.copy_(torch.from_numpy(values.copy()))
    return model.eval()
