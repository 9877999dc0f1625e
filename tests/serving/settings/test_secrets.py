from pathlib import Path

import pytest

from serving.config import load_deployment
from serving.errors import ConfigError

STORES = [
    ("limits", "redis", "redis://cache", ""),
    ("streams", "redis", "unix:///run/redis.sock", 'log = "redis"'),
    ("events", "redis", "rediss://cache", 'outbox = "events.sqlite"\nsink = "redis"'),
    ("conversations", "url", "postgresql://db/weft", 'store = "postgres"'),
    ("retrieval", "url", "postgresql://db/weft", 'folder = "stores"\nindex = "pgvector"'),
]
_BESIDE = (
    'name = "m"\nmodel = {checkpoint = "c"}\nfiles = {folder = "f"}\nembeddings = {checkpoint = "e", name = "e"}\n'
)


def _load(folder: Path, table: str, key: str, address: str, more: str) -> None:
    made = folder / "deployment.toml"
    made.write_text(f'{_BESIDE}[{table}]\n{key} = "{address}"\n{more}\n')
    load_deployment(made)


@pytest.mark.parametrize(("table", "key", "address", "more"), STORES)
def test_an_address_may_name_a_user_and_holds_no_password(
    tmp_path: Path, table: str, key: str, address: str, more: str
) -> None:
    _load(tmp_path, table, key, address.replace("://", "://weft@"), more)
    for wrong in (address.replace("://", "://weft:opensesame@"), f"{address}?password=opensesame"):
        with pytest.raises(
            ConfigError, match=rf"{table}\.{key} must hold no password: WEFT_\w+_PASSWORD does"
        ) as refused:
            _load(tmp_path, table, key, wrong, more)
        assert "opensesame" not in str(refused.value)
