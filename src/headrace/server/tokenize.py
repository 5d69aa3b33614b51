"""POST /tokenize and /detokenize, in vLLM's shapes: what the model sees of a text or a conversation, and back."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.core.errors import RequestError
from headrace.server.chat_prompt import encode_chat
from headrace.server.fields import parse
from headrace.server.logprobs import token_text
from headrace.server.prompts import read_prompts
from headrace.server.protocol import ChatBody, DetokenizeBody, Detokenized, TokenizeBody, Tokenized
from headrace.server.service import Service, service_of
from headrace.server.tools.choice import tool_choice

_MOST_IDS = 2**18
"""Ids in one /detokenize: some seconds of work on a thread, and more than any context."""


async def tokenize(request: Request) -> Response:
    service = service_of(request)
    shown = await service.bodies.prepare(request, lambda fields: _tokenized(service, parse(fields, TokenizeBody)))
    return Response(shown, media_type="application/json")


async def detokenize(request: Request) -> Response:
    service = service_of(request)
    shown = await service.bodies.prepare(request, lambda fields: _detokenized(service, parse(fields, DetokenizeBody)))
    return Response(shown, media_type="application/json")


def _tokenized(service: Service, body: TokenizeBody) -> bytes:
    service.check_model(body.model)
    ids = _ids(service, body)
    names = [token_text(service.tokenizer.token_bytes(i)) for i in ids] if body.return_token_strs else None
    return msgspec.json.encode(Tokenized(len(ids), service.limits.max_model_len, ids, names))


def _detokenized(service: Service, body: DetokenizeBody) -> bytes:
    service.check_model(body.model)
    if body.tokens is None:
        raise RequestError("tokens is required", param="tokens")
    if len(body.tokens) > _MOST_IDS:
        raise RequestError(f"tokens must be at most {_MOST_IDS} ids, got {len(body.tokens)}", param="tokens")
    for token in body.tokens:
        if not 0 <= token < service.limits.vocab_size:
            raise RequestError(
                f"tokens: {token} is not a token id of this model (0 to {service.limits.vocab_size - 1})",
                param="tokens",
            )
    return msgspec.json.encode(Detokenized(service.tokenizer.decode(body.tokens)))


def _ids(service: Service, body: TokenizeBody) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give either prompt or messages", param="prompt")
    if body.messages is not None:
        if body.add_special_tokens is not None:
            raise RequestError(
                "add_special_tokens goes with prompt; a chat template adds its own", param="add_special_tokens"
            )
        tools = tool_choice(ChatBody(tools=body.tools), service.settings.tool_format)
        return encode_chat(service, body, None if tools is None else tools.shown)
    for name in ("add_generation_prompt", "continue_final_message", "tools"):
        if getattr(body, name) not in (None, []):
            raise RequestError(f"{name} goes with messages", param=name)
    if body.prompt == "":
        return []
    prompts = read_prompts(service, body.prompt, add_special_tokens=body.add_special_tokens is not False)
    return prompts[0].ids
