from collections.abc import Iterator

import pytest

from tests.fakes.quick_compilation import quick_compilation


@pytest.fixture(scope="module", autouse=True)
def quickly_compiled() -> Iterator[None]:
    with quick_compilation():
        yield
