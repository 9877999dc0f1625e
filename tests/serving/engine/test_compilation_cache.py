"""Where compiled programs go, and what is said where they cannot go anywhere."""

import logging
from pathlib import Path

import pytest

from serving.engine import compilation_cache
from serving.engine.compilation_cache import program_folder
from serving.errors import ConfigError


@pytest.fixture
def below_a_file(tmp_path: Path) -> Path:
    """A folder that nobody can make, not even root."""
    (tmp_path / "file").touch()
    return tmp_path / "file" / "cache"


def test_a_folder_is_made_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    assert program_folder(tmp_path / "a" / "b", writes=True) == tmp_path / "a" / "b"
    assert not list((tmp_path / "a" / "b").iterdir())


def test_a_named_folder_that_cannot_be_written_is_refused_where_this_process_writes(below_a_file: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine\.compilation_cache: .*cache cannot be written") as refused:
        program_folder(below_a_file, writes=True)
    assert refused.value.param == "engine.compilation_cache"
    assert program_folder(below_a_file, writes=False) == below_a_file


def test_a_folder_that_can_only_be_read_serves_what_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compilation_cache, "_fault", lambda folder: "Read-only file system")
    with pytest.raises(ConfigError, match="Read-only file system"):
        program_folder(tmp_path, writes=True)
    (tmp_path / "jit_step-cache").touch()
    assert program_folder(tmp_path, writes=True) == tmp_path
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "not kept" in record.message


def test_without_a_folder_of_its_own_a_server_starts_and_says_what_that_costs(
    below_a_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOME", str(below_a_file))
    assert program_folder(None, writes=True) is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "each start takes longer" in record.message
