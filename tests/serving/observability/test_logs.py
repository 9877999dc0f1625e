import io
import json
import logging

import pytest

from serving.observability.logs import LogFormat, configure_logging, log_event, log_failure


def _configured(kind: LogFormat) -> io.StringIO:
    stream = io.StringIO()
    configure_logging(kind, stream=stream)
    return stream


@pytest.mark.usefixtures("restored_logging")
def test_a_json_line_has_the_event_and_its_fields() -> None:
    stream = _configured("json")
    log_event(logging.getLogger("here"), "request", request_id="r1", status=200, seconds=0.5)
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "here",
        "event": "request",
        "request_id": "r1",
        "status": 200,
        "seconds": 0.5,
    }


@pytest.mark.usefixtures("restored_logging")
def test_a_text_line_has_the_same_and_stays_one_line() -> None:
    stream = _configured("text")
    log_event(logging.getLogger("here"), "request", request_id="r1", reason="two\nlines")
    assert stream.getvalue().count("\n") == 1
    assert 'request request_id="r1" reason="two\\nlines"' in stream.getvalue()


@pytest.mark.usefixtures("restored_logging")
@pytest.mark.parametrize("kind", ["json", "text"])
def test_a_failure_is_logged_with_its_frames_and_without_its_message(kind: LogFormat) -> None:
    stream = _configured(kind)
    try:
        {}["what a user wrote"]
    except KeyError as error:
        log_failure(logging.getLogger("here"), "request failed", error, request_id="r1")
    assert "KeyError" in stream.getvalue()
    assert "test_logs.py" in stream.getvalue()
    assert "what a user wrote" not in stream.getvalue()


@pytest.mark.usefixtures("restored_logging")
def test_other_libraries_write_in_the_same_format() -> None:
    library = logging.getLogger("some.library")
    library.addHandler(logging.NullHandler())
    library.propagate = False
    stream = _configured("json")
    logging.getLogger("some.library").warning("Invalid HTTP request received.")
    assert json.loads(stream.getvalue())["event"] == "Invalid HTTP request received."
