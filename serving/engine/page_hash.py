"""Names for the contents of pages.

A page's digest covers its own tokens and, through its parent's digest, every token before them; at the root stand the
model (`namespace`), the adapter and the tenant's salt. Two pages with equal digests hold equal K and V. The hash is
cryptographic because a prompt is chosen by a client: a collision that can be constructed would show one client
another's pages.
"""

import struct
from collections.abc import Sequence
from hashlib import blake2b

DIGEST_BYTES = 32


def root_digest(namespace: str, salt: str, adapter: bytes = b"") -> bytes:
    """The parent of a first page, with the digest of the adapter's weights where the sequence has one. The lengths of
    what comes first go in too, so that no two triples read alike."""
    # A salt may come from JSON, which can spell lone surrogates; they must not raise here.
    name = namespace.encode("utf-8", "surrogatepass")
    tail = salt.encode("utf-8", "surrogatepass")
    head = struct.pack("<q", len(name)) + name
    # Keyed, so that no salt can spell what an adapter adds.
    return blake2b(head + tail, key=adapter, digest_size=DIGEST_BYTES).digest()


def page_digest(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The digest of the page that holds `token_ids` (each in 0 .. 2**31-1) after the page that `parent` names."""
    return blake2b(parent + struct.pack(f"<{len(token_ids)}i", *token_ids), digest_size=DIGEST_BYTES).digest()
