"""Writes a GGUF of random weights in the shape of Qwen2.5-0.5B (Q4_0, embedding Q8_0), for speed where caches hide
nothing: Headrace and llama.cpp read the same file. Needs the `gguf` package.

    python benchmarks/peers/random_model.py MODEL.gguf
"""

from __future__ import annotations

import sys

import gguf
import numpy as np

LAYERS, HIDDEN, FEED_FORWARD, HEADS, KV_HEADS, VOCABULARY, CONTEXT = 24, 896, 4864, 14, 2, 151_936, 32_768
TYPES = {gguf.GGMLQuantizationType.Q4_0: (18, 0.011), gguf.GGMLQuantizationType.Q8_0: (34, 0.0007)}
"""Bytes of a block of 32 weights, and the scale that gives them a spread of about 0.05."""


def blocks(random: np.random.Generator, rows: int, columns: int, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """uint8 [rows, bytes]: random integers, and one scale (a half) at the head of each block."""
    size, scale = TYPES[kind]
    raw = random.integers(0, 256, (rows, columns // 32, size), np.uint8)
    raw[:, :, :2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    return raw.reshape(rows, -1)


def tokens() -> list[str]:
    """One for each byte, as GPT-2 writes them, then numbered ones."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    letters = [chr(byte) for byte in shown] + [chr(256 + i) for i in range(len(hidden))]
    return [*letters, "ab", *(f"<{i}>" for i in range(VOCABULARY - 257))]


def main() -> None:
    (path,) = sys.argv[1:]
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_name("random weights in the shape of Qwen2.5-0.5B")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(1_000_000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens())
    writer.add_token_types([1] * VOCABULARY)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(VOCABULARY - 1)

    def add(name: str, rows: int, columns: int, kind: gguf.GGMLQuantizationType) -> None:
        writer.add_tensor(f"{name}.weight", blocks(random, rows, columns, kind), raw_dtype=kind)

    def add_vector(name: str, width: int, value: float) -> None:
        writer.add_tensor(name, np.full(width, value, np.float32))

    four, eight = TYPES
    add("token_embd", VOCABULARY, HIDDEN, eight)
    add_vector("output_norm.weight", HIDDEN, 1.0)
    kv = HIDDEN // HEADS * KV_HEADS
    for i in range(LAYERS):
        for name, width in (("attn_q", HIDDEN), ("attn_k", kv), ("attn_v", kv)):
            add(f"blk.{i}.{name}", width, HIDDEN, four)
            add_vector(f"blk.{i}.{name}.bias", width, 0.0)
        add(f"blk.{i}.attn_output", HIDDEN, HIDDEN, four)
        for name in ("ffn_gate", "ffn_up"):
            add(f"blk.{i}.{name}", FEED_FORWARD, HIDDEN, four)
        add(f"blk.{i}.ffn_down", HIDDEN, FEED_FORWARD, four)
        for name in ("attn_norm", "ffn_norm"):
            add_vector(f"blk.{i}.{name}.weight", HIDDEN, 1.0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
