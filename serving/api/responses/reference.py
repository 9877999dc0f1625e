"""What a request refers to and is not there, or is of no use any more: the error names the place in the request."""

from collections.abc import Iterator
from contextlib import contextmanager

from serving.errors import NotFoundError, RequestError


@contextmanager
def referred_to_by(param: str) -> Iterator[None]:
    """Raises NotFoundError or RequestError, as the block does, of this `param` of the request."""
    try:
        yield
    except RequestError as error:
        kind = NotFoundError if isinstance(error, NotFoundError) else RequestError
        raise kind(f"{param}: {error.message}", param=param, code=error.code) from None
