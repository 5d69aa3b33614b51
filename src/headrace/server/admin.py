"""create_admin_app: what only an operator may see, for a port of this machine alone: metrics, health and the debug
routes, over the service of the API's app. No key is asked for: whoever can reach the port may read.
"""

from starlette.applications import Starlette
from starlette.routing import Route

from headrace.server.debug import DEBUG_ROUTES
from headrace.server.errors import HANDLERS
from headrace.server.health import health, version
from headrace.server.scrape import metrics
from headrace.server.service import Service


def create_admin_app(service: Service) -> Starlette:
    routes = [
        Route("/health", health, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
        Route("/version", version, methods=["GET"]),
        *DEBUG_ROUTES,
    ]
    app = Starlette(routes=routes, exception_handlers=HANDLERS)
    app.router.redirect_slashes = False
    app.state.service = service
    return app
