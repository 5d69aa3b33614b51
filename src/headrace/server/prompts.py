"""The prompt field of a text completion, in its four forms, as token ids: a string, a list of strings, a list of
token ids, a list of lists of token ids.
"""

from dataclasses import dataclass
from typing import Any

from headrace.core.errors import RequestError, shown
from headrace.server.protocol import SamplingBody
from headrace.server.service import Service


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt. text is what the client wrote, None where it sent token ids."""

    ids: list[int]
    text: str | None


def read_prompts(service: Service, prompt: str | list[Any] | None, *, add_special_tokens: bool) -> list[Prompt]:
    """Raises RequestError naming the prompt, by index where there are several."""
    if prompt is None:
        raise RequestError("prompt is required", param="prompt")
    # Counted before anything is looked at: a list of millions is refused at once.
    longest = max(service.settings.max_prompts, service.limits.max_model_len)
    if isinstance(prompt, list) and len(prompt) > longest:
        raise RequestError(
            f"prompt has {len(prompt)} entries: this model's context is {service.limits.max_model_len} tokens, and a "
            f"request may have at most {service.settings.max_prompts} prompts",
            param="prompt",
            code="context_length_exceeded",
        )
    forms = _split(prompt)
    if len(forms) > service.settings.max_prompts:
        raise RequestError(
            f"prompt may have at most {service.settings.max_prompts} prompts, got {len(forms)}", param="prompt"
        )
    several = len(forms) > 1
    return [
        _read(service, form, f"prompt[{i}]" if several else "prompt", add_special_tokens)
        for i, form in enumerate(forms)
    ]


def truncated(service: Service, ids: list[int], body: SamplingBody, max_tokens: int | None) -> list[int]:
    """The last truncate_prompt_tokens of ids; -1 stands for what the context has beside max_tokens. Raises
    RequestError."""
    keep = body.truncate_prompt_tokens
    if keep is None:
        return ids
    if keep == 0 or keep < -1:
        raise RequestError(
            f"truncate_prompt_tokens must be at least 1, or -1 for what fits, got {shown(keep)}",
            param="truncate_prompt_tokens",
        )
    if keep == -1:
        keep = max(1, service.limits.max_model_len - max(1, max_tokens or 0))
    return ids[-keep:]


def _split(prompt: str | list[Any]) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError("prompt must not be an empty list", param="prompt")
    if _is_ids(prompt):
        return [prompt]
    if all(isinstance(p, str) for p in prompt) or all(isinstance(p, list) and _is_ids(p) for p in prompt):
        return prompt
    raise RequestError(
        "prompt must be a string, a list of strings, a list of token ids, or a list of lists of token ids",
        param="prompt",
    )


def _is_ids(value: list[Any]) -> bool:
    return all(type(v) is int for v in value)


def _read(service: Service, form: str | list[int], where: str, add_special_tokens: bool) -> Prompt:
    if not isinstance(form, str):
        return Prompt(form, None)
    service.check_prompt_bytes(len(form.encode()), "prompt")
    ids = service.tokenizer.encode(form, add_special_tokens=add_special_tokens)
    if not ids:
        raise RequestError(f"{where} has no tokens: this model needs at least one", param="prompt")
    return Prompt(ids, form)
