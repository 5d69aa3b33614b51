"""How every generating route begins: the body is read and prepared, its form understood, deadline and caller set; then
its sequences are ready to be handed to the engine.
"""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request

from headrace.server.caller import set_caller
from headrace.server.deadline import set_deadline
from headrace.server.generation import Generation, Sequence
from headrace.server.protocol import SamplingBody
from headrace.server.service import Service, service_of
from headrace.server.structured import check_understood

Body = TypeVar("Body", bound=SamplingBody)
Reading = TypeVar("Reading")


async def begin(
    request: Request,
    prefix: str,
    prepare: Callable[[Service, dict[str, Any], str], tuple[Body, list[Sequence], Reading]],
) -> tuple[Generation, str, Body, Reading]:
    """The generation, not yet begun, the answer's id (prefix and a number of ours), the body, and how its text is to be
    read. prepare: all of these for the body's fields and the id. Raises what the client is to be refused with."""
    service, arrival = service_of(request), time.monotonic()
    service.check_taking_requests()
    request_id = service.new_id(prefix)
    body, sequences, reading = await service.bodies.prepare(
        request, lambda fields: prepare(service, fields, request_id)
    )
    await check_understood(service, sequences[0].request.params.structured_outputs, body)
    set_deadline(request, body.deadline_ms, sequences, arrival)
    set_caller(request, body, sequences)
    generation = Generation(service, sequences, arrival)
    request.state.generation, request.state.answer_id = generation, request_id
    return generation, request_id, body, reading
