"""The one key of a server that has no others: `--api-key`, or WEFT_API_KEY, which other users' `ps` does not show."""

import argparse
import os

from serving.errors import ConfigError

API_KEY_VARIABLE = "WEFT_API_KEY"


def add_api_key_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"that every client must send; better in {API_KEY_VARIABLE}, which other users of the machine cannot see",
    )


def api_key_of(args: argparse.Namespace) -> str | None:
    """None where there is none. Raises ConfigError for an empty one: somebody meant to set it."""
    given = getattr(args, "api_key", None)
    key = os.environ.get(API_KEY_VARIABLE) if given is None else given
    if key is not None and not key.strip():
        raise ConfigError(f"the API key (--api-key, {API_KEY_VARIABLE}) must not be empty", param="api_key")
    return None if key is None else key.strip()
