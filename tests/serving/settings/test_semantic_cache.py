from pathlib import Path

import pytest

from serving.config import load_deployment
from serving.errors import ConfigError

BASE = 'name = "m"\n[model]\ncheckpoint = "c"\n'
ENCODER = '[embeddings]\ncheckpoint = "e"\nname = "e"\n'


def deployment(folder: Path, table: str, encoder: str = ENCODER) -> Path:
    path = folder / "d.toml"
    path.write_text(f"{BASE}{encoder}[semantic_cache]\n{table}\n")
    return path


def test_a_tenant_is_opted_in(tmp_path: Path) -> None:
    config = load_deployment(deployment(tmp_path, 'tenants = {acme = "shadow"}')).semantic_cache
    assert config is not None
    assert (config.mode, config.tenants) == ("off", {"acme": "shadow"})


@pytest.mark.parametrize(
    ("table", "encoder", "says"),
    [
        ('mode = "serve"', "", "needs an \\[embeddings\\] table"),
        ("", ENCODER, '"off" for everybody'),
        ('tenants = {acme = "off"}', ENCODER, '"off" for everybody'),
        ('mode = "on"', ENCODER, "semantic_cache.mode must be one of"),
        ('mode = "serve"\nthreshold = 1.1', ENCODER, "semantic_cache.threshold must be in 0.5 .. 1"),
        ('mode = "serve"\nmax_entries = 0', ENCODER, "semantic_cache.max_entries must be in"),
        ('mode = "serve"\nlifetime_seconds = 0', ENCODER, "semantic_cache.lifetime_seconds must be in"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, table: str, encoder: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_deployment(deployment(tmp_path, table, encoder))
