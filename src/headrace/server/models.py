"""GET /v1/models and /v1/models/{id}: the one model that is served."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.server.protocol import ModelCard, ModelList
from headrace.server.service import Service, service_of


async def list_models(request: Request) -> Response:
    return Response(msgspec.json.encode(ModelList([_card(service_of(request))])), media_type="application/json")


async def get_model(request: Request) -> Response:
    service = service_of(request)
    service.check_model(request.path_params["model"])
    return Response(msgspec.json.encode(_card(service)), media_type="application/json")


def _card(service: Service) -> ModelCard:
    name = service.settings.model_name
    return ModelCard(id=name, created=service.settings.created, root=name, max_model_len=service.limits.max_model_len)
