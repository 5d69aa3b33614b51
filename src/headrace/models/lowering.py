"""Lowering: a ModelSpec and its weights become a Program, once. Which ops stand for a decoder is decided here;
what the ops cannot express is refused by name. Nothing here knows a family or a file format.

A program's fingerprint stands for its numbers: all weights' content, the spec, how weights are computed and the
type of the KV cache. The worker adds the kernel set.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from headrace.core.errors import ModelError
from headrace.core.kv_layout import KVDtype, KVLayout
from headrace.core.model_spec import LayerSpec, ModelSpec
from headrace.models.decoder_weights import DecoderWeights, Part
from headrace.models.formats.weight_source import FloatVector
from headrace.models.rope_table import rope_table
from headrace.ops.matrix import ACTIVATION_GROUP, SCHEME_NAMES, Matrix
from headrace.ops.program import (
    Attention,
    Buffer,
    Embed,
    GatedActivation,
    Linear,
    Op,
    Program,
    RmsNorm,
    RopeKV,
    SelectRows,
    Softcap,
)

Progress = Callable[[int, int], None]
"""Called with (weights loaded, weights in all), from any thread."""

_LOADING_THREADS = 4


def lower(
    spec: ModelSpec,
    weights: DecoderWeights,
    *,
    quantization: str,
    kv_dtype: KVDtype,
    block_size: int,
    max_positions: int | None = None,
    rank: int = 0,
    size: int = 1,
    progress: Progress | None = None,
) -> Program:
    """Load the weights and return the program of `rank` among `size`.

    quantization "auto" keeps weights as stored, "none" widens all to float32. max_positions bounds the rope table
    (default: the model's). Raises ModelError naming what is missing, misshapen or not supported.
    """
    _refuse_unsupported(spec)
    if (rank, size) != (0, 1):
        raise ModelError(f"rank {rank} of {size}: splitting a model over ranks is not available in this version")
    weights.check(spec)
    positions = spec.max_position if max_positions is None else min(max_positions, spec.max_position)
    loading = _Loading(spec, weights, quantization, progress)
    program = Program(
        ops=_ops(spec),
        buffers=_buffers(spec),
        matrices=loading.matrices,
        vectors=loading.vectors,
        kv=tuple(KVLayout.of(group, block_size, kv_dtype) for group in spec.kv_groups),
        vocab_size=spec.vocab_size,
        notes=loading.notes,
    )
    for op in program.ops:
        if isinstance(op, RopeKV) and op.table is not None and op.table not in program.vectors:
            rope = spec.layers[int(op.table.removeprefix("rope"))].attention.rope
            assert rope is not None
            program.vectors[op.table] = rope_table(rope, positions)
    program.fingerprint = _fingerprint(spec, loading.digests, quantization, kv_dtype)
    return program


def _refuse_unsupported(spec: ModelSpec) -> None:
    for i, layer in enumerate(spec.layers):
        a, m = layer.attention, layer.mlp
        lacking = {
            "multi-head latent attention": a.latent is not None,
            "attention sinks": a.sinks,
            "norms of queries and keys": a.qk_norm != "none",
            "mixture of experts": m.experts > 0,
            "feed-forward without a gate": not m.gated,
            f"activation {m.activation}": m.activation not in ("silu", "gelu_tanh"),
            f"{layer.norms}-norm": layer.norms != "pre",
        }
        for what, needed in lacking.items():
            if needed:
                raise ModelError(f"{spec.family}: layer {i} needs {what}, which no op provides in this version")
    widths = {(a.heads, a.kv_heads, a.head_dim, a.v_head_dim) for a in (layer.attention for layer in spec.layers)}
    if len(widths) > 1 or len({layer.mlp.hidden for layer in spec.layers}) > 1:
        raise ModelError(f"{spec.family}: layers of different widths are not supported in this version")
    if spec.logit_scale != 1.0:
        raise ModelError(f"{spec.family}: scaled logits are not provided by any op in this version")


def _buffers(spec: ModelSpec) -> dict[str, Buffer]:
    a, mlp = spec.layers[0].attention, spec.layers[0].mlp.hidden
    qkv = a.heads * a.head_dim + a.kv_heads * (a.head_dim + a.v_head_dim)
    buffers = (
        Buffer("x", spec.hidden),
        Buffer("normed", spec.hidden),
        Buffer("qkv", qkv),
        Buffer("attention", a.heads * a.v_head_dim),
        Buffer("gate_up", 2 * mlp),
        Buffer("activated", mlp),
        Buffer("last", spec.hidden, "logits"),
        Buffer("logits", spec.vocab_size, "logits"),
    )
    return {buffer.name: buffer for buffer in buffers}


def _ops(spec: ModelSpec) -> list[Op]:
    place = {layer: (g, i) for g, group in enumerate(spec.kv_groups) for i, layer in enumerate(group.layers)}
    tables = {layer.attention.rope: f"rope{i}" for i, layer in reversed([*enumerate(spec.layers)])}
    ops: list[Op] = [Embed("x", "embedding", spec.embedding_scale)]
    for i, layer in enumerate(spec.layers):
        rope = layer.attention.rope
        ops += _attention_ops(spec, layer, i, *place[i], None if rope is None else tables[rope])
        ops += _mlp_ops(spec, layer, i)
    ops += [
        SelectRows("x", "last"),
        RmsNorm("last", "last", "final_norm", spec.norm_eps),
        Linear(
            "last",
            "logits",
            "embedding" if spec.tied_embeddings else "head",
            bias="head.bias" if spec.head_bias else None,
        ),
    ]
    if spec.final_softcap is not None:
        ops.append(Softcap("logits", spec.final_softcap))
    return ops


def _attention_ops(spec: ModelSpec, layer: LayerSpec, i: int, group: int, index: int, table: str | None) -> list[Op]:
    a = layer.attention
    return [
        RmsNorm("x", "normed", f"layer{i}.attention_norm", spec.norm_eps),
        Linear("normed", "qkv", f"layer{i}.qkv", bias=f"layer{i}.qkv.bias" if a.qkv_bias else None),
        RopeKV(
            "qkv",
            group,
            index,
            a.heads,
            a.kv_heads,
            a.head_dim,
            a.v_head_dim,
            table,
            rotary_dim=0 if a.rope is None else a.rope.dim,
            interleaved=a.rope is not None and a.rope.interleaved,
        ),
        Attention(
            "qkv",
            "attention",
            group,
            index,
            a.heads,
            a.kv_heads,
            a.head_dim,
            a.v_head_dim,
            a.scale,
            a.window,
            a.softcap,
        ),
        Linear(
            "attention",
            "x",
            f"layer{i}.o",
            bias=f"layer{i}.o.bias" if a.out_bias else None,
            accumulate=True,
            scale=spec.residual_scale,
            k_segment=_k_segment(layer, a.heads * a.v_head_dim),
        ),
    ]


def _mlp_ops(spec: ModelSpec, layer: LayerSpec, i: int) -> list[Op]:
    m = layer.mlp
    activation = m.activation
    assert activation in ("silu", "gelu_tanh")
    return [
        RmsNorm("x", "normed", f"layer{i}.mlp_norm", spec.norm_eps),
        Linear("normed", "gate_up", f"layer{i}.gate_up", bias=f"layer{i}.gate_up.bias" if m.bias else None),
        GatedActivation("gate_up", "activated", activation),
        Linear(
            "activated",
            "x",
            f"layer{i}.down",
            bias=f"layer{i}.down.bias" if m.bias else None,
            accumulate=True,
            scale=spec.residual_scale,
            k_segment=_k_segment(layer, m.hidden),
        ),
    ]


def _k_segment(layer: LayerSpec, k: int) -> int:
    """Sums over k that ranks will share are cut into one segment for each KV head, the finest split that ranks can
    have, so that their number never changes a result. 0 where that does not fall between groups of activations."""
    segment, rest = divmod(k, layer.attention.kv_heads)
    return segment if rest == 0 and segment % ACTIVATION_GROUP == 0 else 0


class _Loading:
    """Loads all weights on a few threads: the copies release the GIL, and pages are read ahead of their use."""

    def __init__(self, spec: ModelSpec, weights: DecoderWeights, quantization: str, progress: Progress | None) -> None:
        self.spec, self.weights, self.quantization = spec, weights, quantization
        self.matrices: dict[str, Matrix] = {}
        self.vectors: dict[str, FloatVector] = {}
        self.digests: dict[str, bytes] = {}
        self.notes: list[str] = []
        matrices, vectors = weights.matrices(spec), weights.vectors(spec)
        total = len(matrices) + len(vectors)
        with ThreadPoolExecutor(min(_LOADING_THREADS, os.cpu_count() or 1)) as pool:
            loaded = pool.map(self._matrix, matrices.items())
            for done, (name, matrix) in enumerate(loaded, 1):
                self.matrices[name] = matrix
                if progress is not None:
                    progress(done, total)
        self.notes += _repacked(self.matrices.values())
        for name, parts in vectors.items():
            self.vectors[name] = self._vector(name, parts)
        if progress is not None:
            progress(total, total)

    def _matrix(self, item: tuple[str, list[Part]]) -> tuple[str, Matrix]:
        name, parts = item
        matrix = self.weights.load_matrix(parts, exact=self.quantization == "none")
        self._digest(parts)
        return name, matrix

    def _vector(self, name: str, parts: list[Part]) -> FloatVector:
        self._digest(parts)
        vector = self.weights.load_vector(parts)
        offset = self.spec.norm_offset if name.endswith("norm") else 0.0
        return vector + np.float32(offset) if offset else vector

    def _digest(self, parts: list[Part]) -> None:
        for part in parts:
            self.digests[part.name] = self.weights.source.digest(part.name)


def _repacked(matrices: Iterable[Matrix]) -> list[str]:
    """What is said at load of weights that no scheme holds as they are stored."""
    counts = Counter((m.stored_as, m.scheme) for m in matrices if m.stored_as)
    return [
        f"{count} matrices stored as {stored_as} are computed as {SCHEME_NAMES[scheme]}"
        for (stored_as, scheme), count in sorted(counts.items())
    ]


def _fingerprint(spec: ModelSpec, digests: dict[str, bytes], quantization: str, kv_dtype: str) -> str:
    """Tensors are taken by digest, in the order of their names in the file."""
    digest = hashlib.blake2b(repr((spec, quantization, kv_dtype)).encode(), digest_size=16)
    for name in sorted(digests):
        digest.update(name.encode() + b"\0" + digests[name])
    return digest.hexdigest()
