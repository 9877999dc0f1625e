from pathlib import Path

import pytest

from serving.config import load_deployment
from serving.errors import ConfigError

BASE = 'name = "m"\n[model]\ncheckpoint = "c"\n'


def test_without_the_table_nothing_is_recorded_and_with_it_no_text_is(tmp_path: Path) -> None:
    path = tmp_path / "d.toml"
    path.write_text(BASE)
    assert load_deployment(path).events is None
    path.write_text(f'{BASE}[events]\noutbox = "events.sqlite"\n')
    config = load_deployment(path).events
    assert config is not None
    assert (config.outbox, config.text, config.users) == ((tmp_path / "events.sqlite").resolve(), False, "hashed")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('sink = "redis"', "events.redis is the address of the stream"),
        ('redis = "redis://cache"', "events.redis is the address of the stream"),
        ('sink = "redis"\nredis = "http://cache"', "events.redis must begin with redis://"),
        ('sink = "redis"\nredis = "redis://cache"\nstream = ""', "events.stream must not be empty"),
        ('sink = "nats"', "events.sink must be one of 'sqlite', 'redis'"),
        ("record = []", "events.record must name some of request, tool"),
        ('record = ["prompts"]', r"events.record\[0\] must be one of 'request'"),
        ("sample = 1.5", "events.sample must be in 0 .. 1, not 1.5"),
        ("max_bytes = 1", "events.max_bytes must be in"),
        ("retain_days = 0", "events.retain_days must be in"),
        ("stream_length = 1", "events.stream_length must be in"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "d.toml"
    path.write_text(f'{BASE}[events]\noutbox = "events.sqlite"\n{line}\n')
    with pytest.raises(ConfigError, match=message):
        load_deployment(path)
