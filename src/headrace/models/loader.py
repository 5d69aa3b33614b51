"""load_model: a local model folder or GGUF file, opened: its spec and its weights, none of them read yet. This is
the engine's half of a model; text (tokenizer, chat template) is models/text.py, so that neither loads the other.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from headrace.core.config import Config
from headrace.core.errors import ModelError
from headrace.core.kv_layout import KVDtype
from headrace.core.model_spec import ModelSpec
from headrace.models.decoder_weights import DecoderWeights
from headrace.models.families.experts import gguf_expert_names
from headrace.models.families.family import MAX_LAYERS, Fields, TensorFacts
from headrace.models.families.registry import family_of_config, family_of_gguf
from headrace.models.formats.gguf import GGUFFile
from headrace.models.formats.packed_source import PackedSource
from headrace.models.formats.quantization_config import quantization_layout
from headrace.models.formats.safetensors import SafetensorsFolder
from headrace.models.lowering import lower
from headrace.models.settings_file import read_json
from headrace.ops.program import Program

ROPE_FACTORS = {
    "rope_factors": "rope_freqs.weight",
    "short_rope_factors": "rope_factors_short.weight",
    "long_rope_factors": "rope_factors_long.weight",
}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """weights go to lowering.lower() with spec."""

    path: Path
    spec: ModelSpec
    weights: DecoderWeights


def lower_model(loaded: LoadedModel, config: Config, max_positions: int | None = None, *, threads: int = 1) -> Program:
    """The program of a model as the config has its weights and cache kept (lowering.lower)."""
    return lower(
        loaded.spec,
        loaded.weights,
        quantization=config.quantization,
        kv_dtype=cast(KVDtype, config.kv_cache_dtype),
        block_size=config.block_size,
        max_positions=max_positions,
        threads=threads,
    )


def load_model(path: Path) -> LoadedModel:
    """Open the model at `path` (sources.locate() finds it). Raises ModelError naming the file and what is wrong."""
    return _load_gguf(path) if path.is_file() else _load_folder(path)


def _load_gguf(path: Path) -> LoadedModel:
    file = GGUFFile(path)
    architecture = file.get("general.architecture")
    family = family_of_gguf(architecture, path)
    header = Fields({**file.scalars(), **file.lists(MAX_LAYERS)}, path, f"{architecture}.")
    present = set(file.names())
    names = gguf_expert_names(family.gguf_names, present)
    if names.embedding not in present:
        raise ModelError(f"{path}: tensor {names.embedding} is missing")
    factors = {field: tuple(map(float, file.vector(name))) for field, name in ROPE_FACTORS.items() if name in present}
    facts = TensorFacts(file.shape(names.embedding)[0], names.head not in present, **factors)
    assert family.from_gguf is not None
    return LoadedModel(path, family.from_gguf(header, facts), DecoderWeights(file, names, family.gguf_paired_rope))


def _load_folder(path: Path) -> LoadedModel:
    config_path = path / "config.json"
    config = read_json(config_path)
    family = family_of_config(config.get("architectures"), config_path)
    layout = quantization_layout(config, config_path)
    spec = family.from_config(Fields(config, config_path))
    folder = SafetensorsFolder(path)
    source = folder if layout is None else PackedSource(folder, layout)
    return LoadedModel(path, spec, DecoderWeights(source, family.hub_names))
