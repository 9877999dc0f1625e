"""Values of flags: argparse prints the message after the flag's name."""

import argparse
import datetime
import os
from pathlib import Path
from urllib.parse import urlsplit

import msgspec


def count(text: str) -> int:
    """A whole number from 1."""
    return _at_least(text, 1)


def count_or_none(text: str) -> int:
    """A whole number from 0."""
    return _at_least(text, 0)


def port(text: str) -> int:
    """0 is any free one."""
    number = _at_least(text, 0)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"must be at most 65535, not {number}")
    return number


def listed(text: str) -> tuple[str, ...]:
    """Words between commas; none where the text is empty."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def sendable(text: str) -> str:
    """A text that a request can carry. Bytes of the command line that are no UTF-8 come as lone surrogates, which
    none can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"must be UTF-8, not {text!r}") from None
    return text


def json_object(text: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(sendable(text), type=dict[str, object])
    except msgspec.DecodeError as error:
        raise argparse.ArgumentTypeError(f"must be a JSON object: {error}") from None


def positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}") from None
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0 and finite, not {text}")
    return number


def seconds(text: str) -> float:
    """A time that may be 0, and that ends."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, not {text!r}") from None
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be at least 0 and finite, not {text}")
    return number


def share(text: str) -> float:
    """From 0 up to, but not, 1."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}") from None
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 0 and below 1, not {text}")
    return number


def moment(text: str) -> float:
    """A date, or a date and a time, of UTC where it names no zone; in seconds since 1970."""
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no date such as 2026-11-01 or 2026-11-01T12:00") from None
    return (found if found.tzinfo else found.replace(tzinfo=datetime.UTC)).timestamp()


def id_range(text: str) -> tuple[int, int]:
    """LOW-HIGH, both included."""
    low, dash, high = text.partition("-")
    if not (dash and low.isdecimal() and high.isdecimal() and int(low) < int(high)):
        raise argparse.ArgumentTypeError(f"must be LOW-HIGH, such as 100-999, not {text!r}")
    return int(low), int(high)


def http_url(text: str) -> str:
    """An address that requests can be sent below."""
    try:
        parts = urlsplit(text)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        (parts.hostname or "").encode("idna")  # as it will be before it is looked up
    except ValueError:  # a port that is no number, a bracket without its other, a name with an empty label
        is_one = False
    if not is_one or not text.isprintable() or " " in text:
        raise argparse.ArgumentTypeError(f"must be an address such as http://127.0.0.1:8000, not {text!r}")
    return text


def server_url(text: str) -> str:
    """An OpenAI-compatible server's address. OpenAI's own clients are given it with /v1, which is left out here: the
    paths of the requests begin with it."""
    return http_url(text).rstrip("/").removesuffix("/v1")


def new_file(text: str) -> Path:
    """What is written at the end of a long run: what would keep it from that is said before."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no directory {path.parent}")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a directory")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{path} cannot be written")
    return path


def svg(text: str) -> Path:
    if Path(text).suffix != ".svg":
        raise argparse.ArgumentTypeError(f"must end in .svg, the one format that is drawn, not {text!r}")
    return new_file(text)


def _at_least(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}, not {number}")
    return number
