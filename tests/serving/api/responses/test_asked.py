"""What a response is asked for, in the words of its protocol."""

import pytest

from serving.api.responses.asked import their_param
from serving.api.responses.body import ResponsesBody
from serving.api.typed_body import typed


@pytest.mark.parametrize(
    ("param", "asked", "theirs"),
    [
        ("messages[2].content", {}, "input"),
        ("max_tokens", {}, "max_output_tokens"),
        ("deadline_seconds", {}, "timeout_seconds"),
        ("grammar", {"text": {"format": {"type": "json_object"}}}, "text.format"),
        ("grammar", {"tools": [{"type": "function", "name": "add"}]}, "tools"),
        ("temperature", {}, "temperature"),
    ],
)
def test_errors_name_the_fields_that_this_protocol_has(param: str, asked: dict[str, object], theirs: str) -> None:
    assert their_param(param, typed(ResponsesBody, {"input": "hi", **asked})) == theirs
