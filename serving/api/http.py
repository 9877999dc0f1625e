"""The HTTP application: which path goes where."""

from typing import NoReturn

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request

from serving.api.front import Front
from serving.api.gate import Gate
from serving.api.health import health_routes
from serving.api.page import page_routes
from serving.api.request_body import body_bytes_for
from serving.api.service import ModelCard, Service, StreamLimits
from serving.api.stream_slots import StreamSlots
from serving.api.text_routes import text_routes
from serving.api.token_routes import model_routes, token_routes
from serving.config import ServerConfig
from serving.engine.client import Engine
from serving.gateway.gateway import Gateway
from serving.generation.generator import Generator
from serving.observability.metrics import Metrics


def build_app(
    generator: Generator,
    engine: Engine,
    server: ServerConfig,
    card: ModelCard,
    *,
    metrics: Metrics | None = None,
    streams: StreamLimits | None = None,
    gateway: Gateway | None = None,
) -> Starlette:
    """`engine` answers health and metrics, so it may be another view of the one that `generator` uses. `metrics` is
    given where more than this app writes to it (`metered_engine.py`), and `gateway` where it is to ask who comes: an
    open one lets everybody in."""
    metrics = metrics or Metrics(card.name)
    gateway = gateway or Gateway()
    service = Service(
        generator=generator,
        engine=engine,
        metrics=metrics,
        slots=StreamSlots(server.max_streams, metrics.open_streams),
        card=card,
        gateway=gateway,
        streams=streams or StreamLimits(),
    )
    max_body_bytes = server.max_body_bytes or body_bytes_for(card.max_model_len)
    app = Starlette(
        routes=[
            *text_routes(service, max_body_bytes),
            *token_routes(service, max_body_bytes),
            *model_routes(service),
            *health_routes(service),
            *page_routes(),
        ],
        middleware=[Middleware(Front, metrics=metrics, gate=Gate(server), gateway=gateway)],
        exception_handlers={HTTPException: _pass_on},
    )
    app.router.redirect_slashes = False
    app.state.service = service
    return app


async def _pass_on(_: Request, error: Exception) -> NoReturn:
    """To `Front`, which answers every failure in one shape; Starlette would answer this kind itself."""
    raise error
