"""POST /tokenize and /detokenize, in vLLM's shapes: what the model sees of a text or a conversation, and back."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.core.errors import RequestError
from headrace.server.chat import render
from headrace.server.fields import parse
from headrace.server.logprobs import token_text
from headrace.server.prompts import read_prompts
from headrace.server.protocol import DetokenizeBody, Detokenized, TokenizeBody, Tokenized
from headrace.server.service import Service, service_of


async def tokenize(request: Request) -> Response:
    service = service_of(request)
    async with service.bodies.json_object(request) as fields:
        body = parse(fields, TokenizeBody)
        service.check_model(body.model)
        ids = await _ids(service, body)
    names = None
    if body.return_token_strs:
        names = [token_text(service.tokenizer.token_bytes(token)) for token in ids]
    shown = Tokenized(len(ids), service.limits.max_model_len, ids, names)
    return Response(msgspec.json.encode(shown), media_type="application/json")


async def detokenize(request: Request) -> Response:
    service = service_of(request)
    async with service.bodies.json_object(request) as fields:
        body = parse(fields, DetokenizeBody)
        service.check_model(body.model)
        if body.tokens is None:
            raise RequestError("tokens is required", param="tokens")
        ids = body.tokens
        for token in ids:
            if not 0 <= token < service.limits.vocab_size:
                raise RequestError(
                    f"tokens: {token} is not a token id of this model (0 to {service.limits.vocab_size - 1})",
                    param="tokens",
                )
        text = await service.bodies.offload(
            4 * len(ids), lambda: service.tokenizer.decode(ids, skip_special_tokens=False)
        )
    return Response(msgspec.json.encode(Detokenized(text)), media_type="application/json")


async def _ids(service: Service, body: TokenizeBody) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give either prompt or messages", param="prompt")
    if body.messages is not None:
        if body.add_special_tokens is not None:
            raise RequestError(
                "add_special_tokens goes with prompt; a chat template adds its own", param="add_special_tokens"
            )
        return await render(service, body.messages, add_generation_prompt=body.add_generation_prompt is not False)
    if body.add_generation_prompt is not None:
        raise RequestError("add_generation_prompt goes with messages", param="add_generation_prompt")
    if body.prompt == "":
        return []
    prompts = await read_prompts(service, body.prompt, add_special_tokens=body.add_special_tokens is not False)
    return prompts[0].ids
