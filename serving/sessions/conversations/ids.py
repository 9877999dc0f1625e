"""Ids that cannot be guessed, of which each tells the tree that it is in."""

import re
import secrets

RESPONSE, CONVERSATION, TURN = "resp", "conv", "turn"

_ID = re.compile(r"[a-z]{2,5}_([0-9a-f]{24})[0-9a-f]{24}")


def new_tree() -> str:
    return secrets.token_hex(12)


def new_id(kind: str, tree: str) -> str:
    return f"{kind}_{tree}{secrets.token_hex(12)}"


def tree_of(name: str) -> str | None:
    """None where it is no id of this server's."""
    found = _ID.fullmatch(name)
    return found[1] if found else None
