import json

import pytest

from serving.api.strict_json import MAX_CONTAINERS, MAX_DEPTH, parse_object
from serving.errors import RequestError


def _refusal(body: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse_object(body)
    return caught.value


def test_what_json_can_say_comes_through_unchanged() -> None:
    value = {"a": [1, -2.5, True, None, "é 😀 \u0000"], "b": {"c": [[1, 2], [3]]}, "max": 2**63 - 1, "min": -(2**63)}
    assert parse_object(json.dumps(value).encode()) == value
    assert parse_object(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"a": 1} x', "not valid JSON"),
        (b'{"a": 01}', "not valid JSON"),
        (b'{"a": "\x01"}', "not valid JSON"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b'{"a": "\xff"}', "not valid UTF-8 at byte 7"),
        (b'{"a": "\xed\xa0\x80"}', "not valid UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "not valid UTF-8"),
        ('{"a": 1}'.encode("utf-16-le"), "not valid JSON"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"a": ' + b"9" * 5000 + b"}", "thousands of digits"),
        (b"[1]", "must be a JSON object, not an array"),
        (b'"a"', "must be a JSON object, not a string"),
        (b"true", "must be a JSON object, not a boolean"),
        (b"null", "must be a JSON object, not null"),
    ],
)
def test_what_is_not_an_object_in_strict_json_is_refused(body: bytes, says: str) -> None:
    error = _refusal(body)
    assert says in error.message
    assert error.code == "invalid_json"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"a": {"b": 1, "b": 2}}', "a.b"),
        (b'{"a": [0, {"b": {"c": 1, "d": 2, "c": 1}}]}', "a[1].b.c"),
        (b'{"a": 1, "a": 1}', "a"),
        (b'{"a": [1, {"b": 9223372036854775808}]}', "a[1].b"),
        (b'{"a": [1, 2, -9223372036854775809]}', "a[2]"),
        (b'{"a": 1e999}', "a"),
        (b'{"a": [0.5, -1e999]}', "a[1]"),
        (rb'{"a": {"b": "\ud800"}}', "a.b"),
        (rb'{"a": ["\udc00\ud800"]}', "a[0]"),
        (rb'{"a": {"\ud800": 1}}', "a"),
        (rb'{"odd key": 1e999}', '["odd key"]'),
    ],
)
def test_a_value_that_parsers_read_differently_is_refused_by_its_path(body: bytes, param: str) -> None:
    assert _refusal(body).param == param


def test_a_surrogate_pair_is_one_character() -> None:
    assert parse_object(rb'{"a": "\ud83d\ude00"}') == {"a": "😀"}


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 900, 60_000])
@pytest.mark.parametrize(("start", "end"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_deep_nesting_is_refused_however_deep(depth: int, start: bytes, end: bytes) -> None:
    body = b'{"a":' + start * (depth - 1) + b"1" + end * (depth - 1) + b"}"
    assert _refusal(body).code == "nested_too_deeply"


def test_nesting_up_to_the_bound_is_read() -> None:
    parse_object(b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH)


@pytest.mark.parametrize("container", [b"[]", b"{}", b'[[],{"a":[]}]'])
def test_too_many_arrays_and_objects_are_refused_before_they_are_made(container: bytes) -> None:
    each = container.count(b"[") + container.count(b"{")
    fitting = (MAX_CONTAINERS - 2) // each
    parse_object(b'{"a":[' + b",".join([container] * fitting) + b"]}")
    assert _refusal(b'{"a":[' + b",".join([container] * (fitting + 1)) + b"]}").code == "too_many_values"
    assert _refusal(b'{"a":[' + b",".join([container] * (fitting + 1))).code == "too_many_values"


@pytest.mark.parametrize("escape", ["", r"\"", r"\\"])
def test_brackets_within_text_are_not_counted(escape: str) -> None:
    text = (escape + "[{") * MAX_CONTAINERS
    assert parse_object(b'{"a": "' + text.encode() + b'", "b": ""}') == {"a": json.loads(f'"{text}"'), "b": ""}


@pytest.mark.parametrize(
    ("begin", "again"), [(b"", b'"'), (b'"', b'\\"['), (b"", b'["'), (b"", b"[\\"), (b'"', b"[\\")]
)
def test_quotes_that_never_end_cost_one_look_at_each_byte(begin: bytes, again: bytes) -> None:
    """Quadratic time would take hours."""
    assert _refusal(begin + again * (1 << 19)).code in ("invalid_json", "too_many_values")
