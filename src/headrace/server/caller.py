"""Who sends a request, and how urgent it may be: tenant and priority of its sequences. Anyone may let others go before;
going before others is for keys that may.
"""

from collections.abc import Iterable, Mapping

import msgspec
from starlette.requests import Request

from headrace.core.errors import RequestError, shown
from headrace.core.priority import DEFAULT_PRIORITY, PRIORITY_LIMIT, PRIORITY_NAMES, SERVICE_TIER_PRIORITIES
from headrace.server.api_keys import ANYONE, Caller
from headrace.server.errors import HttpError
from headrace.server.generation import Sequence
from headrace.server.protocol import SamplingBody


def set_caller(request: Request, body: SamplingBody, sequences: Iterable[Sequence]) -> None:
    """Raises RequestError for a priority that is none, HttpError 403 for one that the key may not ask for."""
    caller: Caller = getattr(request.state, "caller", ANYONE)
    priority, field = _priority(body)
    if priority < DEFAULT_PRIORITY and not caller.may_raise_priority:
        raise HttpError(
            403,
            f"{field}: this API key may not go before others; {DEFAULT_PRIORITY} or more, or a name among "
            f"{', '.join(name for name, value in PRIORITY_NAMES.items() if value >= DEFAULT_PRIORITY)}, is allowed",
            param=field,
            code="priority_not_allowed",
        )
    for sequence in sequences:
        sequence.request = msgspec.structs.replace(sequence.request, tenant=caller.tenant, priority=priority)


def _priority(body: SamplingBody) -> tuple[int, str]:
    """The priority that a body asks for, and the field that says so."""
    tier = _named("service_tier", body.service_tier, SERVICE_TIER_PRIORITIES)
    if body.priority is None:
        return DEFAULT_PRIORITY if tier is None else tier, "service_tier"
    if isinstance(body.priority, str):
        asked = _named("priority", body.priority, PRIORITY_NAMES) or DEFAULT_PRIORITY
    else:
        asked = body.priority
        if not -PRIORITY_LIMIT <= asked < PRIORITY_LIMIT:
            raise RequestError(
                f"priority must be from {-PRIORITY_LIMIT} to {PRIORITY_LIMIT - 1}, got {shown(asked)}", param="priority"
            )
    if tier not in (None, DEFAULT_PRIORITY, asked):
        raise RequestError("service_tier and priority say different things: send one of them", param="service_tier")
    return asked, "priority"


def _named(field: str, name: str | None, known: Mapping[str, int]) -> int | None:
    if name is None:
        return None
    if name not in known:
        raise RequestError(f"{field} must be one of {', '.join(known)}, got {shown(name)}", param=field)
    return known[name]
