"""DecoderWeights: the weights of a dense decoder under the names that lowering uses, whatever file they come from.
It knows which tensors of the file make up each weight, in what shape, and refuses a file that has too few, too many
or misshapen ones, by name, before any is loaded.

Q, K and V are one matrix here (rows concatenated), as are gate and up: fewer, larger products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from headrace.core.errors import ModelError
from headrace.core.model_spec import AttentionSpec, ModelSpec
from headrace.models.families.family import WeightNames
from headrace.models.formats.join import join
from headrace.models.formats.weight_source import FloatVector, WeightSource
from headrace.ops.matrix import Matrix

RowOrder = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of the file: its shape as the spec wants it. paired_heads: it holds this many heads whose rows lie
    in rotary pairs, to be put back in halves; 0 takes rows as they are."""

    name: str
    shape: tuple[int, ...]
    paired_heads: int = 0

    def row_order(self) -> RowOrder | slice:
        """Index that brings the stored rows into order."""
        if not self.paired_heads:
            return slice(None)
        pairs = np.arange(self.shape[0]).reshape(self.paired_heads, -1, 2)
        return pairs.swapaxes(1, 2).reshape(-1)


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """paired_rope: the file keeps the rows of q and k with rotary pairs adjacent; they are put back in halves."""

    source: WeightSource
    names: WeightNames
    paired_rope: bool = False

    def matrices(self, spec: ModelSpec) -> dict[str, list[Part]]:
        """Parts of every matrix by its name in the program; rows of the parts are concatenated."""
        n, hidden = self.names, spec.hidden
        out = {"embedding": [Part(n.embedding, (spec.vocab_size, hidden))]}
        for i, layer in enumerate(spec.layers):
            a, m = layer.attention, layer.mlp
            q, k, v, o = (name.format(i=i) for name in (n.q, n.k, n.v, n.o))
            out[f"layer{i}.qkv"] = [
                Part(q, (a.heads * a.head_dim, hidden), self._paired(a, a.heads)),
                Part(k, (a.kv_heads * a.head_dim, hidden), self._paired(a, a.kv_heads)),
                Part(v, (a.kv_heads * a.v_head_dim, hidden)),
            ]
            out[f"layer{i}.o"] = [Part(o, (hidden, a.heads * a.v_head_dim))]
            gate, up, down = (name.format(i=i) for name in (n.gate, n.up, n.down))
            out[f"layer{i}.gate_up"] = [Part(gate, (m.hidden, hidden)), Part(up, (m.hidden, hidden))]
            out[f"layer{i}.down"] = [Part(down, (hidden, m.hidden))]
        if not spec.tied_embeddings:
            out["head"] = [Part(n.head, (spec.vocab_size, hidden))]
        return out

    def vectors(self, spec: ModelSpec) -> dict[str, list[Part]]:
        """Parts of every vector by its name in the program."""
        n, width = self.names, (spec.hidden,)
        out = {"final_norm": [Part(n.final_norm, width)]}
        if spec.head_bias:
            out["head.bias"] = [Part(_bias(n.head), (spec.vocab_size,))]
        matrices = self.matrices(spec)
        for i, layer in enumerate(spec.layers):
            out[f"layer{i}.attention_norm"] = [Part(n.attention_norm.format(i=i), width)]
            out[f"layer{i}.mlp_norm"] = [Part(n.mlp_norm.format(i=i), width)]
            biased = {
                "qkv": layer.attention.qkv_bias,
                "o": layer.attention.out_bias,
                "gate_up": layer.mlp.bias,
                "down": layer.mlp.bias,
            }
            for matrix in (f"layer{i}.{name}" for name, has in biased.items() if has):
                out[f"{matrix}.bias"] = [Part(_bias(p.name), p.shape[:1], p.paired_heads) for p in matrices[matrix]]
        return out

    def check(self, spec: ModelSpec) -> None:
        """Raise ModelError, naming tensor and file, if one is missing, misshapen or would be left unused."""
        present, used = set(self.source.names()), set()
        for part in self._parts(spec):
            used.add(part.name)
            if part.name not in present:
                raise ModelError(f"tensor {self.source.describe(part.name)} is missing; {spec.family} needs it")
            shape = self.source.shape(part.name)
            if shape != part.shape:
                where = self.source.describe(part.name)
                raise ModelError(f"tensor {where} has shape {shape}, the model's settings need {part.shape}")
        for name in sorted(present - used):
            if not name.endswith(self.names.derivable) and not self._repeats_embedding(spec, name):
                raise ModelError(
                    f"tensor {self.source.describe(name)} is not part of {spec.family} as its settings describe it; "
                    f"ignoring it would change the results, so the model is refused"
                )

    def load_matrix(self, parts: list[Part], *, exact: bool = False) -> Matrix:
        """The parts' rows as one matrix, in the nearest scheme that holds them; exact: their values in float32."""
        load = self.source.floats if exact else self.source.matrix
        return join([_take_rows(load(part.name), part) for part in parts])

    def load_vector(self, parts: list[Part]) -> FloatVector:
        return np.concatenate([self.source.vector(part.name)[part.row_order()] for part in parts])

    def _parts(self, spec: ModelSpec) -> Iterator[Part]:
        for group in (self.matrices(spec), self.vectors(spec)):
            for parts in group.values():
                yield from parts

    def _repeats_embedding(self, spec: ModelSpec, name: str) -> bool:
        """A tied checkpoint may store its head all the same; equal content is no loss."""
        return (
            spec.tied_embeddings
            and name == self.names.head
            and self.source.digest(name) == self.source.digest(self.names.embedding)
        )

    def _paired(self, attention: AttentionSpec, heads: int) -> int:
        rope = attention.rope
        if not self.paired_rope or rope is None:
            return 0
        if rope.dim != attention.head_dim:
            raise ModelError(
                f"rotary dimensions ({rope.dim}) fewer than the head's ({attention.head_dim}) are not supported here"
            )
        return heads


def _bias(weight: str) -> str:
    return weight.removesuffix(".weight") + ".bias"


def _take_rows(matrix: Matrix, part: Part) -> Matrix:
    if not part.paired_heads:
        return matrix
    rows = part.row_order()
    scale = None if matrix.scale is None else matrix.scale[rows]
    minimum = None if matrix.minimum is None else matrix.minimum[rows]
    return replace(matrix, data=matrix.data[rows], scale=scale, minimum=minimum)
