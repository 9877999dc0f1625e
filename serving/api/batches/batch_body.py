"""What POST /v1/batches reads."""

from typing import Annotated, ClassVar, Literal

import msgspec

from serving.api.batches.batch import Endpoint
from serving.api.files.expiry import ANCHORS, ExpiresAfter
from serving.api.metadata import Metadata
from serving.api.typed_body import Body

ENDPOINTS = ("/v1/chat/completions", "/v1/completions")


class BatchBody(Body, kw_only=True):
    words: ClassVar = {"endpoint": ENDPOINTS, "completion_window": ("24h",), "output_expires_after.anchor": ANCHORS}

    input_file_id: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    endpoint: Endpoint
    completion_window: Literal["24h"]
    output_expires_after: ExpiresAfter | None = None
    metadata: Metadata | None = None
