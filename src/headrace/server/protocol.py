"""The bodies of the API: what a client may send (checked structs, every field nullable, null meaning absent) and
what it gets back, in OpenAI's shapes with vLLM's additions. Plain data; no rule is decided here.
"""

from typing import Any

import msgspec

from headrace.core.request import CacheHint
from headrace.policy.records import RequestRecord, StepRecord


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """continuous_usage_stats: usage so far in every chunk. include_obfuscation is accepted: nothing is padded here, so
    it has no effect."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class SamplingBody(msgspec.Struct, kw_only=True):
    """Fields that chat and text completions share."""

    model: str | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    skip_special_tokens: bool | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    cache_salt: str | None = None
    cache_hint: CacheHint | None = None
    num_speculative_tokens: int | None = None
    deadline_ms: int | None = None
    priority: int | str | None = None
    service_tier: str | None = None


class ChatBody(SamplingBody, kw_only=True):
    messages: list[Any] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    echo: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionBody(SamplingBody, kw_only=True):
    prompt: str | list[Any] | None = None
    echo: bool | None = None
    logprobs: int | None = None
    add_special_tokens: bool | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: list[Any] | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: list[int] | None = None


class ResponsesBody(msgspec.Struct, kw_only=True):
    """OpenAI's /v1/responses."""

    model: str | None = None
    input: str | list[Any] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    text: dict[str, Any] | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    truncation: str | None = None
    include: list[str] | None = None
    reasoning: dict[str, Any] | None = None
    service_tier: str | None = None
    priority: int | str | None = None
    seed: int | None = None


class MessagesBody(msgspec.Struct, kw_only=True):
    """Anthropic's /v1/messages."""

    model: str | None = None
    messages: list[Any] | None = None
    system: str | list[Any] | None = None
    max_tokens: int | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stream: bool | None = None
    tools: list[Any] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    service_tier: str | None = None
    priority: int | str | None = None
    seed: int | None = None


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct):
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(msgspec.Struct):
    """completion_tokens_details: of tokens that were guessed ahead; none where none were."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | msgspec.UnsetType = msgspec.UNSET


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[TokenLogprob]


class CompletionLogprobs(msgspec.Struct):
    """Parallel lists, one entry a token. The first token of an echoed prompt has null for both."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class PromptLogprob(msgspec.Struct):
    """One token that might have stood at a position of the prompt."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""By position, then by token id; null for the first, which nothing predicts."""

Unset = msgspec.UnsetType


class CalledFunction(msgspec.Struct, omit_defaults=True):
    """A call's name comes once; in a stream its arguments come in pieces."""

    arguments: str
    name: str | Unset = msgspec.UNSET


class ToolCall(msgspec.Struct):
    id: str
    function: CalledFunction
    type: str = "function"


class ToolCallDelta(msgspec.Struct):
    index: int
    function: CalledFunction
    id: str | Unset = msgspec.UNSET
    type: str | Unset = msgspec.UNSET


class AssistantMessage(msgspec.Struct):
    """reasoning is vLLM's name, reasoning_content DeepSeek's: the same text."""

    role: str
    content: str | None
    refusal: None = None
    reasoning: str | Unset = msgspec.UNSET
    reasoning_content: str | Unset = msgspec.UNSET
    tool_calls: list[ToolCall] | Unset = msgspec.UNSET


class ChatChoice(msgspec.Struct):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None = None
    token_ids: list[int] | Unset = msgspec.UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    prompt_logprobs: PromptLogprobs | Unset = msgspec.UNSET
    prompt_token_ids: list[int] | Unset = msgspec.UNSET


class ChatDelta(msgspec.Struct, omit_defaults=True):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(msgspec.Struct):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | Unset = msgspec.UNSET


class CompletionChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: PromptLogprobs | Unset = msgspec.UNSET
    prompt_token_ids: list[int] | Unset = msgspec.UNSET
    token_ids: list[int] | Unset = msgspec.UNSET


class Completion(msgspec.Struct, kw_only=True):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str


class ModelCard(msgspec.Struct, kw_only=True):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "headrace"
    root: str
    parent: None = None
    max_model_len: int


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    object: str = "list"


class Tokenized(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(msgspec.Struct):
    prompt: str


class Version(msgspec.Struct):
    version: str
    fingerprint: str
    engine: dict[str, str | int]


class Health(msgspec.Struct):
    status: str


class DebugRequest(msgspec.Struct):
    """One sequence of a client's request, told in sentences and in numbers."""

    explanation: list[str]
    record: RequestRecord


class DebugRequests(msgspec.Struct):
    requests: list[DebugRequest]


class DebugSteps(msgspec.Struct):
    """The newest first."""

    steps: list[StepRecord]
