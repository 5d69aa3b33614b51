"""How text is split before byte-level BPE, by the name a GGUF file gives in `tokenizer.ggml.pre`: the expressions are
those of the models' own tokenizer.json files. What is not listed is refused by whoever asks.
"""

from collections.abc import Callable

from tokenizers import Regex, pre_tokenizers

_Build = Callable[[], pre_tokenizers.PreTokenizer]

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_BREAKS = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + _BREAKS
_LLAMA3 = _WORDS + r"|\p{N}{1,3}" + _REST
_QWEN2 = _WORDS + r"|\p{N}" + _REST
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START = r"[^\r\n\p{L}\p{N}]?"
_CASED_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _BREAKS
_TEKKEN = f"{_START}{_UPPER}*{_LOWER}+|{_START}{_UPPER}+{_LOWER}*" + r"|\p{N}" + _CASED_REST
_GPT4O = f"{_START}{_UPPER}*{_LOWER}+{_ENDINGS}?|{_START}{_UPPER}+{_LOWER}*{_ENDINGS}?" + r"|\p{N}{1,3}" + _CASED_REST
_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_DEEPSEEK3 = _PUNCTUATION + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*" + _BREAKS
_HAN_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"


def _by(*patterns: str) -> _Build:
    """Split by one pattern after another, each cutting the pieces of the one before."""

    def build() -> pre_tokenizers.PreTokenizer:
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
        bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*splits, bytes_of])

    return build


SPLITS: dict[str, _Build] = {
    name: build
    for names, build in (
        (("gpt-2", "phi-2", "olmo", "mpt", "jais", "exaone4", "trillion", "granite-docling"), _by(_GPT2)),
        (("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _by(r"\p{N}", _GPT2)),
        (("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2", "dbrx", "smaug-bpe"), _by(_LLAMA3)),
        (("glm4", "chatglm-bpe"), _by(_LLAMA3)),
        (("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan"), _by(_QWEN2)),
        (("tekken",), _by(_TEKKEN)),
        (("gpt-4o", "llama4"), _by(_GPT4O)),
        (("deepseek-v3", "hunyuan-dense"), _by(r"\p{N}{1,3}", _HAN_KANA, _DEEPSEEK3)),
        (("deepseek-coder",), _by(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
        (("falcon",), _by(r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    )
    for name in names
}
_LLAMA3_LIKE = frozenset({"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"})
WHOLE_WORDS_FIRST = _LLAMA3_LIKE | {"tekken"}
"""Words that are tokens are taken whole, whatever the merges say."""
BEGIN_BY_DEFAULT = WHOLE_WORDS_FIRST
"""BOS begins a text where the file does not say."""
COMPOSED = frozenset({"qwen2", "deepseek-r1-qwen", "megrez"})
"""Text is put into Unicode's composed form first."""
