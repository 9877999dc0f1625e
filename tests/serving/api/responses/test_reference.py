"""Errors name the place in the request that refers to what is not there."""

import pytest

from serving.api.responses.reference import referred_to_by
from serving.errors import NotFoundError, OverloadedError, RequestError


@pytest.mark.parametrize("kind", [NotFoundError, RequestError])
def test_the_place_in_the_request_is_named_and_the_kind_stays(kind: type[RequestError]) -> None:
    with pytest.raises(RequestError) as caught, referred_to_by("tools[0].container"):
        raise kind("there is no c", param="container_id", code="container_not_found")
    error = caught.value
    assert type(error) is kind
    assert (error.message, error.param, error.code) == (
        "tools[0].container: there is no c",
        "tools[0].container",
        "container_not_found",
    )


def test_what_is_not_the_requests_fault_passes() -> None:
    with pytest.raises(OverloadedError, match=r"^later$"), referred_to_by("tools[0].container"):
        raise OverloadedError("later", retry_after=1)
