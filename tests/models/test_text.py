import json
from pathlib import Path
from typing import Any

import pytest
from tests.vocabularies import train, write_vocabulary

from headrace.core.errors import ModelError
from headrace.models.formats.gguf import GGUFFile
from headrace.models.gguf_tokenizer import build
from headrace.models.text import load_text

TOKENS, MERGES = train()
TEMPLATE = "{{ eos_token }}{{ messages[0].content }}"


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path_factory.mktemp("cache")))


def folder_with(folder: Path, **files: Any) -> Path:
    gguf = write_vocabulary(folder / "a.bin", TOKENS, MERGES, "smollm")
    (folder / "tokenizer.json").write_text(build(GGUFFile(gguf)).to_str())
    for name, content in files.items():
        path = folder / (name + (".json" if isinstance(content, dict) else ".jinja"))
        path.write_text(json.dumps(content) if isinstance(content, dict) else content)
    return folder


def test_a_gguf_file_brings_its_text_side(tmp_path: Path) -> None:
    path = write_vocabulary(
        tmp_path / "a.gguf", TOKENS, MERGES, "smollm", eot_token_id=0, eom_token_id=2, chat_template=TEMPLATE
    )
    model = load_text(path)
    assert (model.tokenizer.bos_id, model.tokenizer.eos_ids) == (1, (2, 0))
    assert model.chat_template is not None
    assert model.chat_template.render([{"role": "user", "content": "hi"}]) == "<|im_end|>hi"
    assert model.sampling_defaults == {}


def test_a_model_without_a_template_has_none(tmp_path: Path) -> None:
    assert load_text(write_vocabulary(tmp_path / "a.gguf", TOKENS, MERGES, "smollm")).chat_template is None
    assert load_text(folder_with(tmp_path)).chat_template is None


@pytest.mark.parametrize(
    "files",
    [
        {"chat_template": TEMPLATE, "tokenizer_config": {"eos_token": "<|im_end|>"}},
        {"chat_template": {"chat_template": TEMPLATE}, "tokenizer_config": {"eos_token": "<|im_end|>"}},
        {"tokenizer_config": {"eos_token": {"content": "<|im_end|>"}, "chat_template": TEMPLATE}},
        {
            "tokenizer_config": {
                "eos_token": "<|im_end|>",
                "chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": TEMPLATE}],
            }
        },
    ],
)
def test_a_folder_may_keep_its_template_in_several_places(tmp_path: Path, files: dict[str, Any]) -> None:
    template = load_text(folder_with(tmp_path, **files)).chat_template
    assert template is not None
    assert template.render([{"role": "user", "content": "hi"}]) == "<|im_end|>hi"


@pytest.mark.parametrize("place", ["list", "dict", "files", "gguf"])
def test_a_template_of_its_own_for_conversations_with_tools(tmp_path: Path, place: str) -> None:
    named = {"default": "plain", "tool_use": "{{ tools | length }} tools"}
    if place == "gguf":
        (tmp_path / "g").mkdir()
        more = {"chat_template.tool_use": named["tool_use"], "chat_template": named["default"]}
        path = write_vocabulary(tmp_path / "g" / "a.gguf", TOKENS, MERGES, "smollm", **more)
    elif place == "files":
        path = folder_with(tmp_path, chat_template=named["default"])
        (path / "additional_chat_templates").mkdir()
        (path / "additional_chat_templates" / "tool_use.jinja").write_text(named["tool_use"])
    else:
        given: Any = named if place == "dict" else [{"name": k, "template": v} for k, v in named.items()]
        path = folder_with(tmp_path, tokenizer_config={"chat_template": given})
    template = load_text(path).chat_template
    assert template is not None
    messages = [{"role": "user", "content": "hi"}]
    assert template.render(messages) == "plain"
    assert template.render(messages, tools=[{"name": "a"}]) == "1 tools"


@pytest.mark.parametrize(
    ("files", "eos_ids"),
    [
        ({"generation_config": {"eos_token_id": [0, 2]}}, (0, 2)),
        ({"generation_config": {"eos_token_id": 0}, "config": {"eos_token_id": 2}}, (0,)),
        ({"config": {"eos_token_id": 2}}, (2,)),
        ({"generation_config": {"eos_token_id": 0}, "tokenizer_config": {"eos_token": "<|im_end|>"}}, (0, 2)),
        ({}, ()),
    ],
)
def test_every_eos_that_the_files_name_counts(tmp_path: Path, files: dict[str, Any], eos_ids: tuple[int, ...]) -> None:
    assert load_text(folder_with(tmp_path, **files)).tokenizer.eos_ids == eos_ids


def test_sampling_defaults_come_from_generation_config(tmp_path: Path) -> None:
    generation = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "do_sample": True, "min_p": None, "max_length": 9}
    model = load_text(folder_with(tmp_path, generation_config=generation))
    assert model.sampling_defaults == {"temperature": 0.6, "top_p": 0.9, "top_k": 20}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"generation_config": {"eos_token_id": 10**6}}, "eos_token_id must be made of ids from 0 to .*1000000"),
        ({"generation_config": {"eos_token_id": ["a"]}}, "eos_token_id must be"),
        ({"generation_config": {"temperature": "hot"}}, "temperature must be a number, got 'hot'"),
        ({"chat_template": "{% if"}, "does not parse"),
    ],
)
def test_files_that_cannot_be_right_are_refused_by_name(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_text(folder_with(tmp_path, **files))


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json and no tokenizer\.model"):
        load_text(tmp_path)
