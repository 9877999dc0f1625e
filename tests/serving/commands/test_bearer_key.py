"""The key that goes with a command's requests."""

import os

import pytest

from serving.cli import main
from serving.commands.bearer_key import BEARER_KEY_VARIABLE, key_headers
from serving.errors import SetupError


@pytest.mark.parametrize(("key", "sent"), [("sk-1", "Bearer sk-1"), ("sk-1\n", "Bearer sk-1")])
def test_a_key_goes_into_one_header(key: str, sent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BEARER_KEY_VARIABLE, key)
    assert key_headers() == {"authorization": sent}


@pytest.mark.parametrize("key", [None, "", " "])
def test_without_a_key_there_is_no_header(key: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BEARER_KEY_VARIABLE, raising=False)
    if key is not None:
        monkeypatch.setenv(BEARER_KEY_VARIABLE, key)
    assert key_headers() == {}


@pytest.mark.parametrize("key", ["secr\u00e9t", "secret\nx: y", "secret\x7fs", "secret\udcff"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_repeated(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BEARER_KEY_VARIABLE, key)
    with pytest.raises(SetupError, match=BEARER_KEY_VARIABLE) as refused:
        key_headers()
    assert "secr" not in refused.value.message


@pytest.mark.parametrize("command", ["chat --url", "bench serve --model m --url"])
def test_commands_refuse_it_before_they_ask(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(BEARER_KEY_VARIABLE, "\u00e9")
    assert main([*command.split(), "http://127.0.0.1:1"]) == os.EX_CONFIG
    assert f"weft: {BEARER_KEY_VARIABLE} holds what no HTTP header can carry" in capsys.readouterr().err
