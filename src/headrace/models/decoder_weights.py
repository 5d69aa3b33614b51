"""DecoderWeights: the weights of a decoder under the names that lowering uses, whatever file they come from.
It knows which tensors of the file make up each weight, in what shape, and refuses a file that has too few, too many
or misshapen ones, by name, before any is loaded.

Q, K and V are one matrix here (rows concatenated), as are gate and up: fewer, larger products. So are the experts
of one layer, each with its rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from headrace.core.errors import ModelError
from headrace.core.model_spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec
from headrace.models.families.family import WeightNames
from headrace.models.formats.join import join, joined_form
from headrace.models.formats.weight_source import FloatVector, Form, WeightSource
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
            a = layer.attention
            out[f"layer{i}.qkv"] = self._qkv(a, hidden, i)
            out[f"layer{i}.o"] = [Part(n.o.format(i=i), (hidden, a.heads * a.v_head_dim))]
            mlp = self._mixture(layer.mlp, hidden, i) if layer.mlp.experts else self._mlp(layer.mlp, hidden, i)
            out.update({f"layer{i}.{name}": parts for name, parts in mlp.items()})
        if not spec.tied_embeddings:
            out["head"] = [Part(n.head, (spec.vocab_size, hidden))]
        return out

    def _qkv(self, a: AttentionSpec, hidden: int, i: int) -> list[Part]:
        n = self.names
        q, k, v = a.heads * a.head_dim, a.kv_heads * a.head_dim, a.kv_heads * a.v_head_dim
        if n.qkv is not None:
            return [Part(n.qkv.format(i=i), (q + k + v, hidden))]
        return [
            Part(n.q.format(i=i), (q, hidden), self._paired(a, a.heads)),
            Part(n.k.format(i=i), (k, hidden), self._paired(a, a.kv_heads)),
            Part(n.v.format(i=i), (v, hidden)),
        ]

    def _mlp(self, m: MlpSpec, hidden: int, i: int) -> dict[str, list[Part]]:
        n = self.names
        gate_up = [Part(name.format(i=i), (m.hidden, hidden)) for name in (n.gate, n.up)]
        if n.gate_up is not None:
            gate_up = [Part(n.gate_up.format(i=i), (2 * m.hidden, hidden))]
        return {"gate_up": gate_up, "down": [Part(n.down.format(i=i), (hidden, m.hidden))]}

    def _mixture(self, m: MlpSpec, hidden: int, i: int) -> dict[str, list[Part]]:
        def experts(name: str, rows: int, columns: int) -> list[Part]:
            if "{e}" not in name:
                return [Part(name.format(i=i), (m.experts, rows, columns))]
            return [Part(name.format(i=i, e=e), (rows, columns)) for e in range(m.experts)]

        n = self.names
        return {
            "router": [Part(n.router.format(i=i), (m.experts, hidden))],
            "expert_gate": experts(n.expert_gate, m.hidden, hidden),
            "expert_up": experts(n.expert_up, m.hidden, hidden),
            "expert_down": experts(n.expert_down, hidden, m.hidden),
        }

    def vectors(self, spec: ModelSpec) -> dict[str, list[Part]]:
        """Parts of every vector by its name in the program."""
        n, width = self.names, (spec.hidden,)
        out = {"final_norm": [Part(n.final_norm, width)]}
        if spec.head_bias:
            out["head.bias"] = [Part(_bias(n.head), (spec.vocab_size,))]
        matrices = self.matrices(spec)
        for i, layer in enumerate(spec.layers):
            norms = self._norms(layer, spec.hidden)
            out.update(
                {f"layer{i}.{name}": [Part(stored.format(i=i), (size,))] for name, (stored, size) in norms.items()}
            )
            biased = {
                "qkv": layer.attention.qkv_bias,
                "o": layer.attention.out_bias,
                "gate_up": layer.mlp.bias,
                "down": layer.mlp.bias,
            }
            for matrix in (f"layer{i}.{name}" for name, has in biased.items() if has):
                out[f"{matrix}.bias"] = [Part(_bias(p.name), p.shape[:1], p.paired_heads) for p in matrices[matrix]]
        return out

    def _norms(self, layer: LayerSpec, hidden: int) -> dict[str, tuple[str, int]]:
        """Name in the file and width of each norm of a layer, by its name in the program."""
        n, a = self.names, layer.attention
        norms: dict[str, tuple[str, int]] = {}
        if layer.norms in ("pre", "around"):
            norms |= {"attention_norm": (n.attention_norm, hidden), "mlp_norm": (n.mlp_norm, hidden)}
        if layer.norms in ("post", "around"):
            norms |= {
                "attention_post_norm": (n.attention_post_norm, hidden),
                "mlp_post_norm": (n.mlp_post_norm, hidden),
            }
        if a.qk_norm == "head":
            norms |= {"q_norm": (n.q_norm, a.head_dim), "k_norm": (n.k_norm, a.head_dim)}
        if a.qk_norm == "full":
            norms |= {"q_norm": (n.q_norm, a.heads * a.head_dim), "k_norm": (n.k_norm, a.kv_heads * a.head_dim)}
        return norms

    def check(self, spec: ModelSpec) -> None:
        """Raise ModelError, naming tensor and file, if one is missing, misshapen or would be left unused."""
        present, used = set(self.source.names()), set()
        experts = sum(layer.mlp.experts for layer in spec.layers)
        if "{e}" in self.names.expert_gate and experts > len(present):  # before a name is made for each
            raise ModelError(
                f"tensor {self.source.describe(self.names.expert_gate)}: {spec.family} needs one for each of {experts} "
                f"experts, but there are {len(present)} tensors in all"
            )
        for part in self.parts(spec):
            used.add(part.name)
            if part.name not in present:
                raise ModelError(f"tensor {self.source.describe(part.name)} is missing; {spec.family} needs it")
            shape = self.source.shape(part.name)
            if shape != part.shape:
                where = self.source.describe(part.name)
                raise ModelError(f"tensor {where} has shape {shape}, the model's settings need {part.shape}")
        for name in sorted(present - used):
            needless = name.endswith(self.names.derivable) or name.startswith(self.names.unreached)
            if not needless and not self._repeats_embedding(spec, name):
                raise ModelError(
                    f"tensor {self.source.describe(name)} is not part of {spec.family} as its settings describe it; "
                    f"ignoring it would change the results, so the model is refused"
                )

    def load_matrix(self, parts: list[Part], *, exact: bool = False) -> Matrix:
        """The parts' rows as one matrix, in the nearest scheme that holds them; exact: their very values, in bfloat16
        if they are stored so, otherwise in float32."""
        widened = exact and any(self.source.form(part.name).scheme != "bf16" for part in parts)
        load = self.source.floats if widened else self.source.matrix
        return join([_take_rows(load(part.name), part) for part in parts])

    def forms(self, spec: ModelSpec) -> list[Form]:
        """What every matrix becomes, told from headers alone."""
        return [joined_form([self.source.form(p.name) for p in parts]) for parts in self.matrices(spec).values()]

    def load_vector(self, parts: list[Part]) -> FloatVector:
        return np.concatenate([self.source.vector(part.name)[part.row_order()] for part in parts])

    def parts(self, spec: ModelSpec) -> Iterator[Part]:
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
