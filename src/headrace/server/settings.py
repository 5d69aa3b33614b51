"""What the operator sets for the API, as plain data. api_process.py fills it from Config and the loaded model; the
server reads nothing else: no environment, no files, no flags.
"""

from dataclasses import dataclass

from headrace.server.api_keys import Caller


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """model_name: the model's name in the API. eos_ids: tokens that end a sequence. sampling_defaults: values for
    sampling fields a client leaves out (the model's generation_config.json), by field name. created: unix seconds.
    api_keys: keys and whose they are; none: the server is open. open_metrics: /metrics needs no key. access_log: a
    line for each request. allowed_origins: web pages that may read answers. template_kwargs: arguments of the chat
    template that clients may set.
    tool_format: how the model writes calls of tools (tools/formats.py), None if it was not trained to.
    reasoning_parser: how it marks its reasoning (reasoning.py), None if it does not.
    max_prompts: prompts that one completions request may carry. max_sequences: its prompts times its choices.
    offload_bytes: from this size on a body is parsed and tokenized off the event loop. large_body_bytes: from this size
    on only `large_bodies` bodies are held at once, the others wait unread. body_timeout: seconds a client may take to
    send a body. stall_timeout: seconds a reader may leave a stream unread.
    grammar_timeout: seconds that compiling a structured output's form may take.
    """

    model_name: str
    version: str
    created: int
    eos_ids: tuple[int, ...] = ()
    sampling_defaults: tuple[tuple[str, float | int], ...] = ()
    api_keys: tuple[tuple[str, Caller], ...] = ()
    open_metrics: bool = False
    access_log: bool = False
    allowed_origins: tuple[str, ...] = ()
    template_kwargs: tuple[str, ...] = ()
    tool_format: str | None = None
    reasoning_parser: str | None = None
    seed: int = 0
    max_body_bytes: int = 32 * 2**20
    max_body_values: int = 2**22
    max_body_containers: int = 2**18
    max_prompts: int = 1024
    max_sequences: int = 1024
    offload_bytes: int = 16 * 2**10
    large_body_bytes: int = 2**20
    large_bodies: int = 4
    body_timeout: float = 120.0
    stall_timeout: float = 120.0
    grammar_timeout: float = 10.0
