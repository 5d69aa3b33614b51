"""The default model for engines that do not read its file: dequantizes a GGUF to safetensors (float32) with a
tokenizer beside it, and on request to OpenVINO's int8. Needs gguf, safetensors and transformers; with --openvino also
optimum-intel, nncf and openvino-tokenizers.

    python benchmarks/convert_default_model.py MODEL.gguf FOLDER [--openvino FOLDER]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file
from transformers import AutoTokenizer, LlamaConfig

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def dequantize(source: Path, target: Path) -> None:
    """Every stored value exactly, in float32."""
    reader = gguf.GGUFReader(source)
    config = read_config(reader)
    weights = {}
    for tensor in reader.tensors:
        name = tensor.name.removesuffix(".weight")
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if name.startswith("blk."):
            _, layer, part = name.split(".")
            if part in ("attn_q", "attn_k"):
                heads = config.num_attention_heads if part == "attn_q" else config.num_key_value_heads
                values = unpermute(values, heads)
            weights[f"model.layers.{layer}.{LAYER_NAMES[part]}.weight"] = values
        elif name in OUTER_NAMES:
            weights[f"{OUTER_NAMES[name]}.weight"] = values
        else:
            raise SystemExit(f"{source}: no place for tensor {tensor.name}")
    config.tie_word_embeddings = "lm_head.weight" not in weights
    target.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(target)
    contiguous = {name: np.ascontiguousarray(values, np.float32) for name, values in weights.items()}
    save_file(contiguous, target / "model.safetensors", metadata={"format": "pt"})
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)


def read_config(reader: gguf.GGUFReader) -> LlamaConfig:
    fields = {name.removeprefix("llama."): field for name, field in reader.fields.items()}
    if fields["general.architecture"].contents() != "llama":
        raise SystemExit("only models of the llama architecture are converted")
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=len(fields["tokenizer.ggml.tokens"].data),
        hidden_size=int(fields["embedding_length"].contents()),
        intermediate_size=int(fields["feed_forward_length"].contents()),
        num_hidden_layers=int(fields["block_count"].contents()),
        num_attention_heads=int(fields["attention.head_count"].contents()),
        num_key_value_heads=int(fields["attention.head_count_kv"].contents()),
        max_position_embeddings=int(fields["context_length"].contents()),
        rms_norm_eps=float(fields["attention.layer_norm_rms_epsilon"].contents()),
        rope_parameters={"rope_type": "default", "rope_theta": float(fields["rope.freq_base"].contents())},
        bos_token_id=int(fields["tokenizer.ggml.bos_token_id"].contents()),
        eos_token_id=int(fields["tokenizer.ggml.eos_token_id"].contents()),
        dtype="float32",
    )


def unpermute(values: np.ndarray, heads: int) -> np.ndarray:
    """GGUF interleaves the halves of each head's rotary dimensions; transformers keeps them apart."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def convert_to_openvino(source: Path, target: Path) -> None:
    """int8 weights with a scale per output, as `optimum-cli export openvino --weight-format int8` makes them."""
    import openvino
    from openvino_tokenizers import convert_tokenizer
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    quantization = OVWeightQuantizationConfig(bits=8)
    model = OVModelForCausalLM.from_pretrained(source, export=True, quantization_config=quantization)
    model.save_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.save_pretrained(target)
    encoder, decoder = convert_tokenizer(tokenizer, with_detokenizer=True)
    openvino.save_model(encoder, target / "openvino_tokenizer.xml")
    openvino.save_model(decoder, target / "openvino_detokenizer.xml")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--openvino", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    if not (arguments.target / "config.json").exists():
        dequantize(arguments.source, arguments.target)
    if arguments.openvino is not None:
        convert_to_openvino(arguments.target, arguments.openvino)


if __name__ == "__main__":
    main()
