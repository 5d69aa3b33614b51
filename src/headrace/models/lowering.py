"""Lowering: a ModelSpec and its weights become a Program, once. Which ops stand for a decoder is decided here;
what the ops cannot express is refused by name. Nothing here knows a family or a file format.

A program's fingerprint stands for its numbers: all weights' content, the spec, how weights are computed and the
type of the KV cache. The worker adds the kernel set.
"""

import hashlib

import numpy as np

from headrace.core.errors import ModelError
from headrace.core.kv_layout import KVDtype, KVLayout
from headrace.core.model_spec import LayerSpec, MlpSpec, ModelSpec, Rope
from headrace.models.decoder_weights import DecoderWeights
from headrace.models.formats.weight_source import FloatVector
from headrace.models.rope_table import depends_on_length, rope_table
from headrace.models.weight_loading import CONVERSION, LoadingMatrices, load_digests
from headrace.ops import program as ir
from headrace.ops.matrix import ACTIVATION_GROUP

_EXPERT_ROWS = 16
"""Experts lie in one matrix, each in whole tiles of the kernels."""


def lower(
    spec: ModelSpec,
    weights: DecoderWeights,
    *,
    quantization: str,
    kv_dtype: KVDtype,
    block_size: int,
    max_positions: int | None = None,
    threads: int = 1,
    rank: int = 0,
    size: int = 1,
) -> ir.Program:
    """Return the program of `rank` among `size`. Its matrices are loaded as they are taken.

    quantization "auto" keeps weights as stored, "none" widens what is not bfloat16 to float32, "int8" and "int4"
    quantize those stored as floats. threads: on how many to read. max_positions bounds the rope table (default: the
    model's). Raises ModelError naming what is missing, misshapen or not supported.
    """
    check_supported(spec)
    if (rank, size) != (0, 1):
        raise ModelError(f"rank {rank} of {size}: splitting a model over ranks is not available in this version")
    weights.check(spec)
    positions = spec.max_position if max_positions is None else min(max_positions, spec.max_position)
    matrices = LoadingMatrices(weights, weights.matrices(spec), quantization=quantization, threads=threads)
    program = ir.Program(
        ops=_ops(spec),
        buffers=_buffers(spec),
        matrices=matrices,
        vectors={name: _vector(spec, name, weights.load_vector(p)) for name, p in weights.vectors(spec).items()},
        kv=tuple(KVLayout.of(group, block_size, kv_dtype) for group in spec.kv_groups),
        vocab_size=spec.vocab_size,
        notes=matrices.notes,
    )
    ropes = _rope_tables(spec)
    program.vectors.update({name: rope_table(rope, positions) for rope, name in ropes.items()})
    length = positions if any(map(depends_on_length, ropes)) else None
    digests = load_digests(weights, weights.parts(spec), threads=threads)
    program.weights = _fingerprint((spec, quantization, CONVERSION), digests)
    program.fingerprint = _fingerprint((program.weights, kv_dtype, length), {})
    return program


def check_supported(spec: ModelSpec) -> None:
    """Raise ModelError, naming it, for what a spec asks for and no op provides."""
    for i, layer in enumerate(spec.layers):
        a, m = layer.attention, layer.mlp
        lacking = {
            "multi-head latent attention": a.latent is not None,
            "attention sinks": a.sinks,
            f"{m.router} routing of experts": m.experts > 0 and m.router != "softmax",
            "experts shared by all tokens": m.experts > 0 and m.shared_hidden > 0,
            "biases of experts": m.experts > 0 and m.bias,
            f"experts of width {m.hidden} and {spec.hidden} (both must be multiples of {_EXPERT_ROWS})": m.experts > 0
            and (m.hidden % _EXPERT_ROWS > 0 or spec.hidden % _EXPERT_ROWS > 0),
            "feed-forward without a gate": not m.gated,
            f"activation {m.activation}": m.activation not in ("silu", "gelu_tanh"),
        }
        needed = [what for what, needs in lacking.items() if needs]
        if needed:
            raise ModelError(
                f"{spec.family}: layer {i} needs {', '.join(needed)}, which no op provides in this version"
            )
    widths = {(a.heads, a.kv_heads, a.head_dim, a.v_head_dim) for a in (layer.attention for layer in spec.layers)}
    kinds = {bool(layer.mlp.experts) for layer in spec.layers}
    if len(widths) > 1 or len({(m.hidden, m.experts, m.experts_per_token) for m in _mlps(spec)}) > len(kinds):
        raise ModelError(f"{spec.family}: layers of different widths are not supported in this version")


def _mlps(spec: ModelSpec) -> list[MlpSpec]:
    return [layer.mlp for layer in spec.layers]


def _buffers(spec: ModelSpec) -> dict[str, ir.Buffer]:
    a = spec.layers[0].attention
    qkv = a.heads * a.head_dim + a.kv_heads * (a.head_dim + a.v_head_dim)
    buffers = [
        ir.Buffer("x", spec.hidden),
        ir.Buffer("normed", spec.hidden),
        ir.Buffer("qkv", qkv),
        ir.Buffer("attention", a.heads * a.v_head_dim),
        ir.Buffer("last", spec.hidden, "logits"),
        ir.Buffer("logits", spec.vocab_size, "logits"),
    ]
    if any(layer.norms != "pre" for layer in spec.layers):
        buffers.append(ir.Buffer("branch", spec.hidden))
    for m in _mlps(spec):
        if m.experts == 0:
            buffers += [ir.Buffer("gate_up", 2 * m.hidden), ir.Buffer("activated", m.hidden)]
            continue
        taken = m.experts_per_token
        buffers += [
            ir.Buffer("router", m.experts),
            ir.Buffer("routes", 2 * taken),
            ir.Buffer("expert_gate_up", 2 * taken * m.hidden),
            ir.Buffer("expert_activated", taken * m.hidden),
            ir.Buffer("expert_out", taken * spec.hidden),
        ]
    return {buffer.name: buffer for buffer in buffers}


def _rope_tables(spec: ModelSpec) -> dict[Rope, str]:
    """The table of each rope, named after the first layer that has it."""
    ropes = [(i, layer.attention.rope) for i, layer in enumerate(spec.layers)]
    return {rope: f"rope{i}" for i, rope in reversed(ropes) if rope is not None}


def _ops(spec: ModelSpec) -> list[ir.Op]:
    place = {layer: (g, i) for g, group in enumerate(spec.kv_groups) for i, layer in enumerate(group.layers)}
    tables = _rope_tables(spec)
    ops: list[ir.Op] = [ir.Embed("x", "embedding", spec.embedding_scale)]
    for i, layer in enumerate(spec.layers):
        rope = layer.attention.rope
        ops += _attention_ops(spec, layer, i, *place[i], None if rope is None else tables[rope])
        ops += _mlp_ops(spec, layer, i)
    ops += [
        ir.SelectRows("x", "last"),
        ir.RmsNorm("last", "last", "final_norm", spec.norm_eps),
        ir.Linear(
            "last",
            "logits",
            "embedding" if spec.tied_embeddings else "head",
            bias="head.bias" if spec.head_bias else None,
        ),
    ]
    if spec.final_softcap is not None:
        ops.append(ir.Softcap("logits", spec.final_softcap))
    return ops


def _attention_ops(spec: ModelSpec, layer: LayerSpec, i: int, group: int, index: int, table: str | None) -> list[ir.Op]:
    a = layer.attention
    q, k = (0, a.heads * a.head_dim), (a.heads * a.head_dim, (a.heads + a.kv_heads) * a.head_dim)
    ops, source = _branch_input(spec, layer, f"layer{i}.attention_norm")
    ops.append(ir.Linear(source, "qkv", f"layer{i}.qkv", bias=f"layer{i}.qkv.bias" if a.qkv_bias else None))
    if a.qk_norm != "none":
        width = a.head_dim if a.qk_norm == "head" else 0
        ops += [
            ir.RmsNorm("qkv", "qkv", f"layer{i}.q_norm", spec.norm_eps, width, q),
            ir.RmsNorm("qkv", "qkv", f"layer{i}.k_norm", spec.norm_eps, width, k),
        ]
    heads = (a.heads, a.kv_heads, a.head_dim, a.v_head_dim)
    ops += [
        ir.RopeKV(
            "qkv",
            group,
            index,
            *heads,
            table,
            rotary_dim=0 if a.rope is None else a.rope.dim,
            interleaved=a.rope is not None and a.rope.interleaved,
        ),
        ir.Attention("qkv", "attention", group, index, *heads, a.scale, a.window, a.softcap),
    ]
    bias = f"layer{i}.o.bias" if a.out_bias else None
    segment = _k_segment(layer, a.heads * a.v_head_dim)
    return ops + _branch_output(spec, layer, "attention", f"layer{i}.o", bias, segment, f"layer{i}.attention_post_norm")


def _mlp_ops(spec: ModelSpec, layer: LayerSpec, i: int) -> list[ir.Op]:
    m = layer.mlp
    activation = m.activation
    assert activation in ("silu", "gelu_tanh")
    ops, source = _branch_input(spec, layer, f"layer{i}.mlp_norm")
    if m.experts:
        return ops + _mixture_ops(spec, layer, i, source)
    ops += [
        ir.Linear(source, "gate_up", f"layer{i}.gate_up", bias=f"layer{i}.gate_up.bias" if m.bias else None),
        ir.GatedActivation("gate_up", "activated", activation),
    ]
    bias = f"layer{i}.down.bias" if m.bias else None
    segment = _k_segment(layer, m.hidden)
    return ops + _branch_output(spec, layer, "activated", f"layer{i}.down", bias, segment, f"layer{i}.mlp_post_norm")


def _mixture_ops(spec: ModelSpec, layer: LayerSpec, i: int, source: str) -> list[ir.Op]:
    m = layer.mlp
    activation = m.activation
    assert activation in ("silu", "gelu_tanh")
    assert layer.norms == "pre"
    experts = (m.experts, m.experts_per_token)
    return [
        ir.Linear(source, "router", f"layer{i}.router"),
        ir.RouteExperts("router", "routes", m.experts_per_token, m.normalize_router),
        ir.ExpertLinear(source, "expert_gate_up", "routes", f"layer{i}.expert_gate", *experts, shared_input=True),
        ir.ExpertLinear(
            source,
            "expert_gate_up",
            "routes",
            f"layer{i}.expert_up",
            *experts,
            shared_input=True,
            column=m.experts_per_token * m.hidden,
        ),
        ir.GatedActivation("expert_gate_up", "expert_activated", activation),
        ir.ExpertLinear(
            "expert_activated",
            "expert_out",
            "routes",
            f"layer{i}.expert_down",
            *experts,
            shared_input=False,
            k_segment=_k_segment(layer, m.hidden),
        ),
        ir.MixExperts("expert_out", "x", "routes", m.experts_per_token, spec.residual_scale),
    ]


def _branch_input(spec: ModelSpec, layer: LayerSpec, norm: str) -> tuple[list[ir.Op], str]:
    """What comes before a branch, and the buffer that it reads."""
    if layer.norms == "post":
        return [], "x"
    return [ir.RmsNorm("x", "normed", norm, spec.norm_eps)], "normed"


def _branch_output(
    spec: ModelSpec, layer: LayerSpec, source: str, matrix: str, bias: str | None, k_segment: int, norm: str
) -> list[ir.Op]:
    """The last linear of a branch, its norm if there is one after it, and the sum with the residual stream."""
    scale = spec.residual_scale
    if layer.norms == "pre":
        return [ir.Linear(source, "x", matrix, bias, accumulate=True, scale=scale, k_segment=k_segment)]
    return [
        ir.Linear(source, "branch", matrix, bias, k_segment=k_segment),
        ir.RmsNorm("branch", "branch", norm, spec.norm_eps),
        ir.Add("branch", "x", scale),
    ]


def _k_segment(layer: LayerSpec, k: int) -> int:
    """Sums over k that ranks will share are cut into one segment for each KV head, the finest split that ranks can
    have, so that their number never changes a result. 0 where that does not fall between groups of activations."""
    segment, rest = divmod(k, layer.attention.kv_heads)
    return segment if rest == 0 and segment % ACTIVATION_GROUP == 0 else 0


def _vector(spec: ModelSpec, name: str, vector: FloatVector) -> FloatVector:
    """A vector as ops take it."""
    if name.endswith("norm") and spec.norm_offset:
        vector = vector + np.float32(spec.norm_offset)
    # Logits are linear in these two, so that scaled logits need no op of their own.
    if name in ("final_norm", "head.bias") and spec.logit_scale != 1.0:
        vector = vector * np.float32(spec.logit_scale)
    return vector


def _fingerprint(settings: tuple[object, ...], digests: dict[str, bytes]) -> str:
    """Of settings, and of tensors by digest, in the order of their names in the file."""
    digest = hashlib.blake2b(repr(settings).encode(), digest_size=16)
    for name in sorted(digests):
        digest.update(name.encode() + b"\0" + digests[name])
    return digest.hexdigest()
