"""Which request fields exist, and what becomes of each: honoured (the body's struct has it), accepted because it
cannot change the text, or refused by name. Nothing is ever ignored in silence; null means absent everywhere.
"""

from typing import Any, TypeVar

import msgspec

from headrace.core.errors import RequestError, did_you_mean

Body = TypeVar("Body", bound=msgspec.Struct)

NO_EFFECT: dict[str, str] = {
    "user": "names an end user",
    "metadata": "labels for stored completions",
    "safety_identifier": "names an end user",
    "prompt_cache_key": "prefixes are cached by content",
    "prompt_cache_retention": "prefixes are kept while there is room",
    "prediction": "predicted output changes speed only",
    "spaces_between_special_tokens": "nothing is put between special tokens",
}
"""Accepted with any value: they have no effect on the text."""

NEUTRAL_ONLY: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none",),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none",),
    "modalities": (["text"],),
    "store": (False,),
    "reasoning_effort": ("none",),
    "use_beam_search": (False,),
    "best_of": (1,),
    "suffix": ("",),
}
"""Accepted with these values only, which ask for nothing; with others they are refused by name."""

REFUSED: dict[str, str] = {
    "suffix": "filling in the middle is not available",
    "best_of": "use n, and choose among the answers",
    "audio": "this server writes text only",
    "web_search_options": "there is no web search",
    "verbosity": "say it in the prompt",
    "chat_template": "templates come from the model only",
    "guided_json": "it is the older name of structured_outputs.json",
    "guided_regex": "it is the older name of structured_outputs.regex",
    "guided_choice": "it is the older name of structured_outputs.choice",
    "guided_grammar": "it is the older name of structured_outputs.grammar",
    "guided_decoding_backend": "there is one backend",
    "guided_whitespace_pattern": "see structured_outputs.disable_any_whitespace",
    "logits_processors": "no code is taken from clients",
    "length_penalty": "there is no beam search",
    "kv_transfer_params": "not for clients",
    "prompt_embeds": "send text or token ids",
    "mm_processor_kwargs": "this model reads text only",
    "media_io_kwargs": "this model reads text only",
    "request_id": "send an X-Request-Id header",
    "vllm_xargs": "there are no extensions to hand them to",
    "ec_transfer_params": "not for clients",
    "cache_hit_threshold": "prefixes are used whenever they are cached",
    "thinking_token_budget": "use max_tokens",
}
"""Fields that other servers or clients know and this one does not do, with what to do instead."""


def parse(fields: dict[str, Any], body: type[Body]) -> Body:
    """Check a JSON object's fields and return them as `body`. Raises RequestError naming the field."""
    honoured = body.__struct_encode_fields__
    given: dict[str, Any] = {}
    for name, value in fields.items():
        if value is None or name in NO_EFFECT:
            continue
        if name in honoured:
            given[name] = value
        elif name not in NEUTRAL_ONLY or not _neutral(name, value):
            raise _refusal(name, value, set(honoured))
    try:
        return msgspec.convert(given, body, strict=True)
    except msgspec.ValidationError as error:
        raise _type_error(str(error)) from None


def _neutral(name: str, value: Any) -> bool:
    # True == 1 in Python, so compare the type too: "store": 0 is not "store": false.
    return any(value == allowed and type(value) is type(allowed) for allowed in NEUTRAL_ONLY[name])


def _refusal(name: str, value: Any, honoured: set[str]) -> RequestError:
    if name in REFUSED:
        return RequestError(f"{name} is not supported: {REFUSED[name]}", param=name, code="unsupported_parameter")
    if name in NEUTRAL_ONLY:
        allowed = " or ".join(msgspec.json.encode(v).decode() for v in NEUTRAL_ONLY[name])
        return RequestError(
            f"{name} may only be {allowed} or null in this version, got {_short(value)}",
            param=name,
            code="unsupported_parameter",
        )
    known = honoured | NO_EFFECT.keys() | NEUTRAL_ONLY.keys()
    hint = did_you_mean(name, known, f"known: {', '.join(sorted(honoured))}", most=3)
    return RequestError(f"unknown field {name[:64]!r}; {hint}", param=name[:64], code="unknown_parameter")


def _type_error(message: str) -> RequestError:
    """msgspec says "Expected `int | null`, got `str` - at `$.stop_token_ids[0]`": name the field as clients do."""
    what, found, path = message.partition(" - at `$")
    what = what.replace(" | null", "").replace("`", "")
    if not found:
        return RequestError(what)
    path = path.rstrip("`").lstrip(".")
    field = path.partition(".")[0].partition("[")[0]
    return RequestError(f"{path}: {what[0].lower()}{what[1:]}", param=field)


def _short(value: Any) -> str:
    shown = msgspec.json.encode(value).decode()
    return shown if len(shown) <= 80 else shown[:77] + "..."
