from pathlib import Path

import pytest

from serving.config import load_deployment
from serving.errors import ConfigError

HEAD = 'name = "m"\n[model]\ncheckpoint = "."\n'
CLUSTER = '[cluster]\nprocesses = 2\ncoordinator = "127.0.0.1:7200"\n'


def load(folder: Path, text: str) -> None:
    path = folder / "deployment.toml"
    path.write_text(HEAD + text)
    load_deployment(path)


@pytest.mark.parametrize(
    ("text", "param", "told"),
    [
        ("[server]\nport = 9000\ngrpc_port = 9000", "server.grpc_port", "another port than server.port, which is 9000"),
        ("[admin]\nport = 8000", "admin.port", "another port than server.port, which is 8000 too"),
        ('[admin]\nport = 8000\nhost = "localhost"', "admin.port", "server.port"),
        ('[admin]\nport = 8000\nhost = "0.0.0.0"', "admin.port", "server.port"),
        ("[server]\ngrpc_port = 9000\n[admin]\nport = 9000", "admin.port", "server.grpc_port"),
        (f"{CLUSTER}[server]\nport = 7200", "cluster.coordinator", "server.port"),
        (f"{CLUSTER}runtime_port = 7200", "cluster.runtime_port", "cluster.coordinator"),
    ],
)
def test_a_port_that_is_given_twice_is_refused_by_name(tmp_path: Path, text: str, param: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, text)
    assert refused.value.param == param
    assert told in refused.value.message


@pytest.mark.parametrize(
    "text",
    [
        "[server]\nport = 0\ngrpc_port = 0\n[admin]\nport = 0",
        '[admin]\nport = 8000\nhost = "127.0.0.2"',
        '[admin]\nport = 8000\nhost = "::1"',
        '[admin]\nport = 8000\nhost = "::"',
    ],
    ids=["whatever is free", "another address", "IPv6", "all of IPv6"],
)
def test_what_listens_elsewhere_may_have_the_same_port(tmp_path: Path, text: str) -> None:
    load(tmp_path, text)
