"""What the flags' types take, and how they refuse."""

import argparse

import pytest

from serving.commands.argument_types import http_url, sendable, server_url, share


@pytest.mark.parametrize(("text", "number"), [("0", 0.0), ("0.00", 0.0), ("0e3", 0.0), ("0.5", 0.5), ("0.999", 0.999)])
def test_a_share_is_any_number_from_0_and_below_1(text: str, number: float) -> None:
    assert share(text) == number


@pytest.mark.parametrize("text", ["1", "-0.1", "nan", "inf"])
def test_a_share_outside_is_refused_with_both_its_bounds(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"must be at least 0 and below 1, not {text}"):
        share(text)


def test_a_share_that_is_no_number_is_refused() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be a number, not 'half'"):
        share("half")


@pytest.mark.parametrize("host", ["a..b", ".", "a" * 64])
def test_a_name_that_cannot_be_looked_up_is_no_address(host: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be an address such as"):
        http_url(f"http://{host}")


@pytest.mark.parametrize("url", ["http://[::1]:8000", "http://localhost.", "https://b\u00fccher.example/api"])
def test_names_and_numbers_are_addresses(url: str) -> None:
    assert http_url(url) == url


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://h:1", "http://h:1"),
        ("http://h:1/v1", "http://h:1"),
        ("http://h/api/v1/", "http://h/api"),
        ("http://h/v1x", "http://h/v1x"),
    ],
)
def test_the_address_of_a_server_is_the_same_with_v1_and_without(url: str, base: str) -> None:
    assert server_url(url) == base


def test_a_text_with_bytes_that_are_none_cannot_be_sent() -> None:
    assert sendable("\u00e9\n\U0001f600") == "\u00e9\n\U0001f600"
    with pytest.raises(argparse.ArgumentTypeError, match=r"must be UTF-8, not 'a.udcff'"):
        sendable("a\udcff")
