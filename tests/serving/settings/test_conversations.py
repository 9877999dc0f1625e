from pathlib import Path

import pytest

from serving.errors import ConfigError
from serving.settings.conversations import ConversationsConfig, Store, check_conversations


@pytest.mark.parametrize(
    ("store", "path", "url", "param"),
    [
        ("sqlite", None, "redis://x", "url"),
        ("redis", None, None, "url"),
        ("redis", Path("x"), "redis://x", "path"),
        ("redis", None, "postgres://x", "url"),
        ("postgres", None, "redis://x", "url"),
    ],
)
def test_a_store_has_its_own_place_and_no_other(store: Store, path: Path | None, url: str | None, param: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_conversations(ConversationsConfig(store=store, path=path, url=url), "x.toml")
    assert refused.value.param == param


def test_places_that_are_right_are_taken_and_nought_days_are_for_ever() -> None:
    for config in (
        ConversationsConfig(),
        ConversationsConfig(path=Path("x")),
        ConversationsConfig(store="postgres", url="postgresql://weft@/weft?host=/run"),
        ConversationsConfig(store="redis", url="unix:///run/redis.sock"),
    ):
        check_conversations(config, "x.toml")
    assert ConversationsConfig(retain_days=2).retain_seconds == 172800
    assert ConversationsConfig(retain_days=0).retain_seconds is None
