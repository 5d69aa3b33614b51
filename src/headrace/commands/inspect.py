"""headrace inspect: what a model is, from its headers alone: no weight is read, so it answers at once, and says of a
model that cannot be served what is in the way.
"""

import tempfile
from pathlib import Path
from typing import Any

import click

from headrace.commands.report import json_option, show
from headrace.core.errors import ModelError
from headrace.core.kv_layout import KVLayout
from headrace.core.model_spec import ModelSpec
from headrace.models.formats.weight_source import Form
from headrace.models.hub_headers import locate_headers
from headrace.models.loader import load_model
from headrace.models.lowering import check_supported
from headrace.models.text import load_text
from headrace.ops.matrix import SCHEME_NAMES

_BLOCK = 16  # tokens; a KV block is no larger than its tokens, so any size gives the same bytes for one


@click.command(name="inspect")
@click.argument("model")
@click.option("--revision", help="Branch, tag or commit of a hub model.")
@json_option
def inspect_model(model: str, revision: str | None, json_file: Path | None) -> int:
    """Show what MODEL is: its sizes, formats, tokenizer and context, and what would be refused."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        path = locate_headers(model, Path(folder), revision=revision)
        report: dict[str, Any] = {"model": model}
        refused: list[str] = []
        for part in (_weights, _text):
            try:
                part(path, report)
            except ModelError as error:
                refused.append(str(error))
    report["refused"] = refused
    show(report, json_file)
    return 2 if refused else 0


def _weights(path: Path, report: dict[str, Any]) -> None:
    loaded = load_model(path)
    source, spec = loaded.weights.source, loaded.spec
    report |= {
        "family": spec.family,
        "parameters": spec.num_parameters,
        "layers": len(spec.layers),
        "hidden": spec.hidden,
        "vocabulary": spec.vocab_size,
        "context": spec.max_position,
        "tied_embeddings": spec.tied_embeddings,
        "kv_per_token_bytes": _kv_bytes(spec),
        "windows": sorted({group.window for group in spec.kv_groups if group.window is not None}),
        "stored": {f"{kind}_bytes": size for kind, size in sorted(source.stored_bytes().items())},
    }
    check_supported(spec)
    loaded.weights.check(spec)
    report["computed"] = _computed(loaded.weights.forms(spec))


def _computed(forms: list[Form]) -> dict[str, str]:
    """How matrices of each stored type are computed, with --quantization auto."""
    return {form.stored: SCHEME_NAMES[form.scheme] if form.stored_as else "as stored" for form in forms}


def _kv_bytes(spec: ModelSpec) -> dict[str, int]:
    """Bytes that one token takes of the KV cache, by the cache's type; layers with a window keep only its tokens."""
    return {
        f"{dtype}_bytes": sum(KVLayout.of(group, _BLOCK, dtype).block_bytes for group in spec.kv_groups) // _BLOCK
        for dtype in ("bf16", "fp32", "int8")
    }


def _text(path: Path, report: dict[str, Any]) -> None:
    text = load_text(path)
    report |= {
        "tokenizer": text.tokenizer.kind,
        "tokens": text.tokenizer.vocab_size,
        "end_tokens": list(text.tokenizer.eos_ids),
        "chat_template": text.chat_template is not None,
        "template_takes": [] if text.chat_template is None else text.chat_template.takes,
        "sampling_defaults": text.sampling_defaults,
    }
