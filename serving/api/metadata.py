"""The labels that a client may put on what it keeps here, in OpenAI's sizes."""

from typing import Annotated

import msgspec

Metadata = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]],
    msgspec.Meta(max_length=16),
]
