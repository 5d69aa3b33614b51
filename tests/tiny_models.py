"""Small random decoders for tests: real programs by the real lowering, with peaked attention (large queries and
keys), so that a wrong position, block or scale shows. The same seed gives the same weights."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from headrace.core.model_spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, Rope
from headrace.models.decoder_weights import DecoderWeights
from headrace.models.families.family import HUB_NAMES
from headrace.models.formats.join import widen
from headrace.models.formats.weight_source import Form
from headrace.models.lowering import lower
from headrace.ops.matrix import Matrix

VOCAB = 97


def tiny_spec(*, windows=(None, None), vocab_size=VOCAB):
    """hidden 64, 4 heads of 16 over 2 KV heads; one layer per window."""
    layers = tuple(
        LayerSpec(AttentionSpec(4, 2, 16, 16, 16**-0.5, Rope(10_000.0, 16), window), MlpSpec(96)) for window in windows
    )
    return ModelSpec("tiny", vocab_size, 64, layers, 1e-5, 512, tied_embeddings=True)


@dataclass(frozen=True)
class RandomWeights:
    """A WeightSource without a file; shapes come from the spec."""

    spec: ModelSpec
    scheme: str = "f32"
    seed: int = 0

    def _shapes(self):
        return {part.name: part.shape for part in DecoderWeights(self, HUB_NAMES).parts(self.spec)}

    def names(self):
        return list(self._shapes())

    def shape(self, name):
        return self._shapes()[name]

    def matrix(self, name):
        n, k = self.shape(name)
        random = self._random(name)
        gain = 3.0 if "q_proj" in name or "k_proj" in name else 1.0
        if self.scheme == "f32":
            return Matrix("f32", n, k, (random.standard_normal((n, k)) * gain / k**0.5).astype(np.float32))
        if self.scheme == "bf16":
            values = (random.standard_normal((n, k)) * gain / k**0.5).astype(np.float32)
            return Matrix("bf16", n, k, (values.view(np.uint32) >> 16).astype(np.uint16))
        scale = random.uniform(0.5, 1.5, (n, k // 32)).astype(np.float32) * np.float32(gain / k**0.5)
        if self.scheme == "q8":
            q = random.integers(-127, 128, (n, k)).astype(np.int8)
            return Matrix("q8", n, k, q, 32, scale / np.float32(64))
        data = random.integers(0, 256, (n, k // 32, 16)).astype(np.uint8)
        scale /= np.float32(5)
        return Matrix("q4", n, k, data, 32, scale, scale * np.float32(-7.5))

    def form(self, name):
        return Form(self.scheme, self.scheme)

    def floats(self, name):
        return widen(self.matrix(name))

    def vector(self, name):
        return self._random(name).uniform(0.5, 1.5, self.shape(name)).astype(np.float32)

    def digest(self, name):
        return f"{self.scheme}{self.seed}{name}".encode()

    def release(self, name):
        pass

    def describe(self, name):
        return name

    def _random(self, name):
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])


def tiny_program(scheme="f32", *, kv_dtype="bf16", block_size=16, windows=(None, None), seed=0, quantization="auto"):
    spec = tiny_spec(windows=windows)
    weights = DecoderWeights(RandomWeights(spec, scheme, seed), HUB_NAMES)
    return lower(spec, weights, quantization=quantization, kv_dtype=kv_dtype, block_size=block_size)
