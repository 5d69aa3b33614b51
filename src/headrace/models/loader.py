"""load_model: a local model folder or GGUF file, opened: its spec and its weights, none of them read yet. This is
the engine's half of a model; text (tokenizer, chat template) is models/text.py, so that neither loads the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import ModelError
from headrace.core.model_spec import ModelSpec
from headrace.models.decoder_weights import DecoderWeights
from headrace.models.families.family import GGUF_NAMES, HUB_NAMES, Fields
from headrace.models.families.registry import family_of_config, family_of_gguf
from headrace.models.formats.gguf import GGUFFile
from headrace.models.formats.packed_source import PackedSource
from headrace.models.formats.quantization_config import quantization_layout
from headrace.models.formats.safetensors import SafetensorsFolder
from headrace.models.settings_file import read_json

_ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """weights go to lowering.lower() with spec."""

    path: Path
    spec: ModelSpec
    weights: DecoderWeights


def load_model(path: Path) -> LoadedModel:
    """Open the model at `path` (sources.locate() finds it). Raises ModelError naming the file and what is wrong."""
    return _load_gguf(path) if path.is_file() else _load_folder(path)


def _load_gguf(path: Path) -> LoadedModel:
    file = GGUFFile(path)
    architecture = file.get("general.architecture")
    family = family_of_gguf(architecture, path)
    header = Fields(file.scalars(), path, f"{architecture}.")
    present = set(file.names())
    if GGUF_NAMES.embedding not in present:
        raise ModelError(f"{path}: tensor {GGUF_NAMES.embedding} is missing")
    factors = tuple(map(float, file.vector(_ROPE_FACTORS))) if _ROPE_FACTORS in present else ()
    vocab_size = file.shape(GGUF_NAMES.embedding)[0]
    spec = family.from_gguf(header, vocab_size, factors, GGUF_NAMES.head not in present)
    return LoadedModel(path, spec, DecoderWeights(file, GGUF_NAMES, family.gguf_paired_rope))


def _load_folder(path: Path) -> LoadedModel:
    config_path = path / "config.json"
    config = read_json(config_path)
    family = family_of_config(config.get("architectures"), config_path)
    layout = quantization_layout(config, config_path)
    spec = family.from_config(Fields(config, config_path))
    folder = SafetensorsFolder(path)
    source = folder if layout is None else PackedSource(folder, layout)
    return LoadedModel(path, spec, DecoderWeights(source, HUB_NAMES))
