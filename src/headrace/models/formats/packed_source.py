"""PackedSource: a quantized checkpoint as a WeightSource. Modules whose pieces a layout knows show as one `.weight`;
every other tensor is a float as in any checkpoint, so what no one understands is refused by its own name.
"""

import hashlib

from headrace.core.errors import ModelError
from headrace.models.formats.packed_layouts import Layout, Module
from headrace.models.formats.safetensors import SafetensorsFolder
from headrace.models.formats.weight_source import FloatVector, Form
from headrace.ops.matrix import Matrix

_KV_CACHE_SCALES = (".k_scale", ".v_scale")


class PackedSource:
    """Raises ModelError if nothing in the folder is quantized as the layout says."""

    def __init__(self, folder: SafetensorsFolder, layout: Layout) -> None:
        self._folder, self._layout = folder, layout
        ending = f".{layout.anchor}"
        self._modules = {
            f"{module}.weight": Module(folder, module)
            for module in (name.removesuffix(ending) for name in folder.names() if name.endswith(ending))
        }
        if not self._modules:
            raise ModelError(
                f"{folder.path}: config.json says that its weights are quantized, but no tensor ends in {ending}"
            )
        pieces = {f"{module.name}.{piece}" for module in self._modules.values() for piece in layout.pieces}
        for name in self._modules:
            if name in folder and name not in pieces:
                raise ModelError(f"tensor {folder.describe(name)} would be there twice, for {ending} holds it too")
        plain = [n for n in folder.names() if n not in pieces and not n.endswith(_KV_CACHE_SCALES)]
        self._names = [*plain, *self._modules]

    def names(self) -> list[str]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        module = self._modules.get(name)
        return self._folder.shape(name) if module is None else self._layout.shape(module)

    def describe(self, name: str) -> str:
        module = self._modules.get(name)
        return self._folder.describe(name if module is None else f"{module.name}.{self._layout.anchor}")

    def matrix(self, name: str) -> Matrix:
        module = self._modules.get(name)
        return self._folder.matrix(name) if module is None else self._layout.read(module).matrix()

    def floats(self, name: str) -> Matrix:
        module = self._modules.get(name)
        if module is None:
            return self._folder.floats(name)
        values = self._layout.read(module).floats()
        n, k = values.shape
        return Matrix("f32", n, k, values)

    def form(self, name: str) -> Form:
        module = self._modules.get(name)
        return self._folder.form(name) if module is None else self._layout.form(module)

    def vector(self, name: str) -> FloatVector:
        return self._folder.vector(name)

    def stored_bytes(self) -> dict[str, int]:
        return self._folder.stored_bytes()

    def release(self, name: str) -> None:
        module = self._modules.get(name)
        if module is None:
            self._folder.release(name)
            return
        for piece in self._layout.pieces:
            if module.has(piece):
                self._folder.release(f"{module.name}.{piece}")

    def digest(self, name: str) -> bytes:
        module = self._modules.get(name)
        if module is None:
            return self._folder.digest(name)
        digest = hashlib.blake2b(repr(self._layout).encode(), digest_size=16)
        for piece in self._layout.pieces:
            if module.has(piece):
                digest.update(piece.encode() + self._folder.digest(f"{module.name}.{piece}"))
        return digest.digest()
