"""Digests name contents, model and tenant."""

import itertools

import pytest

from serving.engine.page_hash import DIGEST_BYTES, page_digest, root_digest


def test_equal_histories_have_equal_digests() -> None:
    first = page_digest(root_digest("model", "salt"), (1, 2, 3))
    assert first == page_digest(root_digest("model", "salt"), [1, 2, 3])
    assert len(first) == DIGEST_BYTES


def test_a_digest_changes_with_the_tokens_their_order_what_came_before_the_model_and_the_salt() -> None:
    root = root_digest("model", "salt")
    digests = [
        page_digest(root, (1, 2)),
        page_digest(root, (2, 1)),
        page_digest(root, (1, 2, 0)),
        page_digest(page_digest(root, (1, 2)), (1, 2)),
        page_digest(page_digest(root, (1, 3)), (1, 2)),
        page_digest(root_digest("other", "salt"), (1, 2)),
        page_digest(root_digest("model", "pepper"), (1, 2)),
        page_digest(root_digest("model", ""), (1, 2)),
    ]
    assert all(a != b for a, b in itertools.combinations(digests, 2))


def test_namespace_and_salt_cannot_be_shifted_into_each_other() -> None:
    assert root_digest("ab", "c") != root_digest("a", "bc")


@pytest.mark.parametrize("salt", ["\ud800", "\x00", "é" * 1000])
def test_any_string_that_json_can_spell_is_a_salt(salt: str) -> None:
    assert len(root_digest("model", salt)) == DIGEST_BYTES
