import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """For a test that configures the root logger."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
