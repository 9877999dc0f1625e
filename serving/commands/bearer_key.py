"""The key that a command shows to a server: OPENAI_API_KEY, as OpenAI's own clients read it."""

import os

from serving.errors import SetupError

BEARER_KEY_VARIABLE = "OPENAI_API_KEY"


def key_headers() -> dict[str, str]:
    """Empty where there is no key. Raises SetupError for one that no header can carry; the message never repeats it."""
    key = os.environ.get(BEARER_KEY_VARIABLE, "").strip()  # a file's last newline is no part of it
    if not key:
        return {}
    if not (key.isascii() and key.isprintable()):
        raise SetupError(
            f"{BEARER_KEY_VARIABLE} holds what no HTTP header can carry: a key is ASCII, without control characters",
            param=BEARER_KEY_VARIABLE,
        )
    return {"authorization": f"Bearer {key}"}
