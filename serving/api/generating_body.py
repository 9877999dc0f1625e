"""The body of a request that generates: a server that is full refuses it before it is parsed."""

from typing import TypeVar

from starlette.requests import Request

from serving.api.request_body import read_typed
from serving.api.request_events import recorded_request
from serving.api.service import Service
from serving.api.typed_body import Body

B = TypeVar("B", bound=Body)


async def read_generating(request: Request, kind: type[B], max_bytes: int, service: Service) -> B:
    """Raises what `read_typed` and `Gateway.knock` raise."""
    caller = request.state.caller

    def knock(body: bytes) -> None:
        with recorded_request(service.events, caller, service.card.name):
            service.gateway.knock_with(caller.principal, body)

    return await read_typed(request, kind, max_bytes, knock)
