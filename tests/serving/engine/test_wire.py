"""An error that crosses from one process to another, or to a log, is the same on the other side."""

import msgspec
import pytest

from serving import errors
from serving.engine.wire import Failure
from serving.errors import EngineError, OverloadedError, QuotaError, RateLimitedError, WeftError
from serving.orchestrator.retrieval.index import IndexUnavailableError

TIMED = {"RateLimitedError", "OverloadedError"}
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, WeftError)]


def crossed(error: WeftError) -> WeftError:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(Failure.of(error)), type=Failure).error()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.__name__ not in TIMED and kind is not QuotaError])
def test_every_kind_keeps_its_class_and_its_words(kind: type[WeftError]) -> None:
    same = crossed(kind("of a part", param="part", code="broken"))
    assert (type(same), same.message, same.param, same.code) == (kind, "of a part", "part", "broken")


@pytest.mark.parametrize("kind", [RateLimitedError, OverloadedError])
def test_when_to_come_again_is_kept(kind: type[OverloadedError]) -> None:
    same = crossed(kind("full", retry_after=2.5, code="queue"))
    assert (type(same), same.code) == (kind, "queue")
    assert isinstance(same, kind)
    assert same.retry_after == 2.5


def test_what_a_quota_has_left_is_kept() -> None:
    error = QuotaError("full", code="files", limit=3, used=2, param="file")
    same = crossed(error)
    assert (type(same), same.param, same.code, same.metadata) == (QuotaError, "file", "files", error.metadata)


def test_a_kind_that_is_not_known_there_is_the_nearest_that_is() -> None:
    class OwnError(WeftError):
        pass

    assert type(crossed(OwnError("odd"))) is EngineError
    assert type(crossed(IndexUnavailableError("away"))) is OverloadedError
