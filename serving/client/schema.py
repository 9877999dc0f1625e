"""The messages of `proto/weft/v1`, compiled when this module is imported.

No generated code lies in the tree: protoc turns the .proto files into descriptors, which are data and so bound to no
version of the protobuf library, and the library makes the classes from those.
"""

import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import Message
from grpc_tools import protoc

PROTO_FILE = "weft/v1/generation.proto"
SERVICE = "weft.v1.Generation"


def _described(name: str) -> FileDescriptorSet:
    """Raises RuntimeError where protoc refuses the file; it has then said why on stderr."""
    protos = resources.files("serving.client") / "proto"
    with tempfile.TemporaryDirectory() as made, resources.as_file(protos) as folder:
        out = Path(made) / "descriptors"
        if protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={out}", str(folder / name)]) != 0:
            raise RuntimeError(f"protoc cannot compile {name}")
        return FileDescriptorSet.FromString(out.read_bytes())


def _classes() -> dict[str, type[Message]]:
    pool = descriptor_pool.Default()  # where the reflection service looks
    for file in _described(PROTO_FILE).file:
        pool.AddSerializedFile(file.SerializeToString())
    found = pool.FindFileByName(PROTO_FILE).message_types_by_name
    return {name: message_factory.GetMessageClass(kind) for name, kind in found.items()}


_CLASSES: dict[str, Any] = _classes()

GenerateRequest = _CLASSES["GenerateRequest"]
GenerateReply = _CLASSES["GenerateReply"]
GenerateChunk = _CLASSES["GenerateChunk"]
Choice = _CLASSES["Choice"]
ToolCall = _CLASSES["ToolCall"]
Usage = _CLASSES["Usage"]
TokenLogprobs = _CLASSES["TokenLogprobs"]
ModerationFlag = _CLASSES["ModerationFlag"]
Token = _CLASSES["Token"]
TokenIds = _CLASSES["TokenIds"]
Messages = _CLASSES["Messages"]
ListModelsRequest = _CLASSES["ListModelsRequest"]
ListModelsReply = _CLASSES["ListModelsReply"]
TokenizeRequest = _CLASSES["TokenizeRequest"]
TokenizeReply = _CLASSES["TokenizeReply"]
EmbedRequest = _CLASSES["EmbedRequest"]
EmbedReply = _CLASSES["EmbedReply"]
Embedding = _CLASSES["Embedding"]
DetokenizeRequest = _CLASSES["DetokenizeRequest"]
DetokenizeReply = _CLASSES["DetokenizeReply"]

SERVICE_METHODS = tuple(GenerateReply.DESCRIPTOR.file.services_by_name["Generation"].methods_by_name)
FinishReason = GenerateReply.DESCRIPTOR.file.enum_types_by_name["FinishReason"]


def method(name: str) -> str:
    """The path of a method, as HTTP/2 has it."""
    return f"/{SERVICE}/{name}"
