"""A gRPC client that knows weft by its .proto file alone: npm's @grpc/grpc-js."""

import asyncio
import json
import os
from importlib import resources
from pathlib import Path

from tests.serving.api.conftest import MODEL, ApiMaker, chat_format, make_api, tokenizer
from tests.serving.api.grpc.serving_grpc import serving_grpc

__all__ = ["chat_format", "make_api", "tokenizer"]

SCRIPT = Path(__file__).parent / "node" / "grpc.mjs"
PACKAGES = Path(__file__).parents[2] / ".build" / "node" / "node_modules"  # where scripts/test installs them


async def test_node_streams_asks_cancels_and_reads_errors(make_api: ApiMaker) -> None:
    api = make_api(make_api.says("héllo"))
    with resources.as_file(resources.files("serving.client") / "proto") as protos:
        async with serving_grpc(api) as address:
            node = await asyncio.create_subprocess_exec(
                *("node", str(SCRIPT), address, str(protos)),
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "NODE_PATH": str(PACKAGES)},
            )
            out, _ = await node.communicate()
    assert node.returncode == 0
    seen = json.loads(out)
    assert seen["streamed"] == seen["whole"] == "héllo"
    assert seen["finish"] == "FINISH_REASON_STOP"
    assert seen["usage"]["completion_tokens"] == 7
    assert seen["pieces"] >= 2  # what comes while a message is written leaves with the next
    assert seen["refused"] == {"code": "INVALID_ARGUMENT", "details": "temperature must be between 0 and 2, not 9.0"}
    assert seen["cancelled"] == "CANCELLED"
    assert seen["models"] == [MODEL]
    assert next(request for request in api.engine.requests).sampling.seed == 9007199254740993
