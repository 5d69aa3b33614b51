"""A body's conversation becomes the prompt of a chat: token ids by the model's own template, with those of its
arguments that clients of this server may set.
"""

from typing import Any

from headrace.core.errors import RequestError
from headrace.server.faces import ChatTemplate
from headrace.server.messages import check_messages
from headrace.server.protocol import ChatBody, TokenizeBody
from headrace.server.service import Service

_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""Variables of a template that have fields of their own."""


def encode_chat(
    service: Service, body: ChatBody | TokenizeBody, tools: list[dict[str, Any]] | None = None
) -> list[int]:
    """Token ids of a body's conversation by the model's template. Raises RequestError naming the message."""
    template = service.chat_template
    if template is None:
        raise RequestError(
            "this model has no chat template: use /v1/completions", param="messages", code="no_chat_template"
        )
    messages = check_messages(body.messages, most=service.limits.max_model_len)
    service.check_prompt_bytes(sum(len(m["content"].encode("utf-8", "replace")) for m in messages), "messages")
    continued = body.continue_final_message is True
    prompted = not continued if body.add_generation_prompt is None else body.add_generation_prompt
    return template.encode(
        messages,
        add_generation_prompt=prompted,
        continue_final_message=continued,
        tools=tools,
        documents=_documents(template, body.documents),
        more=_template_kwargs(service, template, body.chat_template_kwargs),
    )


def _documents(template: ChatTemplate, documents: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    if documents and "documents" not in template.variables:
        raise RequestError(
            "this model's chat template takes no documents: put them in a message",
            param="documents",
            code="unsupported_parameter",
        )
    return documents or None


def _template_kwargs(service: Service, template: ChatTemplate, given: dict[str, Any] | None) -> dict[str, Any] | None:
    """Templates come from the model; of their arguments clients may set those that the operator lists."""
    allowed = service.settings.template_kwargs
    for name in given or ():
        where = f"chat_template_kwargs.{name[:64]}"
        if name not in allowed:
            listed = ", ".join(allowed) or "none"
            raise RequestError(
                f"{where} may not be set by clients of this server (--allowed-chat-template-kwargs: {listed})",
                param="chat_template_kwargs",
                code="unsupported_parameter",
            )
        if name not in template.variables or name in _RESERVED:
            raise RequestError(
                f"{where}: this model's chat template has no such argument", param="chat_template_kwargs"
            )
    return given
