from pathlib import Path

import pytest

from serving.config import load_deployment
from serving.errors import ConfigError

BASE = 'name = "m"\n[model]\ncheckpoint = "c"\n[quality_watch]\n'


def test_a_pause_out_of_its_range_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.toml"
    path.write_text(f'{BASE}canaries = "c.toml"\nseconds = 0.5\n')
    with pytest.raises(ConfigError, match=r"quality_watch.seconds must be in 1 .. 86400, not 0.5"):
        load_deployment(path)
    path.write_text(f'{BASE}canaries = "c.toml"\n')
    config = load_deployment(path).quality_watch
    assert config is not None
    assert config.canaries == (tmp_path / "c.toml").resolve()
