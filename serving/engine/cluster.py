"""The hosts of one replica, as each of them must know it: the secret that they share, and what must be equal on all."""

import dataclasses
import hashlib
import os
import platform
import socket
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from serving.config import ClusterConfig, Deployment
from serving.engine import cluster_wire
from serving.engine.wire import PROTOCOL
from serving.errors import CheckpointError, ConfigError, SetupError
from serving.web_names import host_and_port

TOKEN_VARIABLE = "WEFT_CLUSTER_TOKEN"
SHORTEST_TOKEN = 16  # bytes
# Of a host alone; a difference in them changes no program.
_OWN_SETTINGS = ("cpu_threads", "max_waiting", "step_timeout_seconds")


def cluster_token(environment: Mapping[str, str] = os.environ) -> bytes:
    """The secret that all hosts of a replica are started with. Raises ConfigError."""
    token = environment.get(TOKEN_VARIABLE, "").encode()
    if len(token) < SHORTEST_TOKEN:
        found = f"it has {len(token)} bytes" if token else "it is not set"
        raise ConfigError(
            f"the hosts of a cluster know each other by {TOKEN_VARIABLE}, at least {SHORTEST_TOKEN} bytes, the same on "
            f"every host, and {found}: openssl rand -hex 32 makes one",
            param=TOKEN_VARIABLE,
        )
    return token


def address_to_listen_on(cluster: ClusterConfig) -> tuple[str, int]:
    """The one address of this host that the other hosts reach. Raises SetupError where its name is not known here."""
    host, port = host_and_port(cluster.coordinator or "") or ("", 0)  # checked with the rest of the deployment
    name = cluster.listen or host
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SetupError(f"cluster: {name} has no address here: {error.strerror or error}", param="listen") from error
    return str(found[0][4][0]), port


def runs_here(deployment: Deployment, window: int) -> dict[str, str]:
    """What hosts compare before they load anything: versions, settings, and which weights.

    Raises CheckpointError; ConfigError for a mesh that several hosts do not offer.
    """
    if deployment.mesh.pipeline > 1:
        raise ConfigError(
            f"the mesh axis pipeline must be 1 on several hosts, not {deployment.mesh.pipeline}: what goes from stage "
            "to stage does not go from host to host yet; split the model over tensor or expert",
            param="mesh",
        )
    shared = {name: _shared(getattr(deployment, name)) for name in ("model", "engine", "mesh")}
    return {
        **{name: version(name) for name in ("weft", "jax", "jaxlib")},
        "python": platform.python_version(),
        "protocol": _digest([PROTOCOL.encode(), msgspec.json.encode(_message_schema())]),
        "deployment": _digest([msgspec.json.encode([shared, window], order="deterministic")]),
        "checkpoint": _checkpoint(deployment.model.checkpoint),
    }


def differences(mine: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """jax 0.11.2 there and 0.10.2 here, ..."""
    return [
        f"{name} {theirs.get(name, 'unknown')} there and {mine.get(name, 'unknown')} here"
        for name in {**mine, **theirs}
        if mine.get(name) != theirs.get(name)
    ]


def _shared(table: Any) -> dict[str, Any]:
    """Less what is a host's own: where its files lie, and how it treats its processes."""
    values = dataclasses.asdict(table).items()
    return {name: value for name, value in values if name not in _OWN_SETTINGS and not isinstance(value, Path | None)}


def _checkpoint(directory: Path) -> str:
    """By config.json, and the names and sizes of the weights: to read them all would take as long as to load them."""
    try:
        sizes = [f"{path.name} {path.stat().st_size}".encode() for path in sorted(directory.glob("*.safetensors"))]
        return _digest([(directory / "config.json").read_bytes(), *sizes])
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be read: {error.strerror or error}") from error


def _message_schema() -> object:
    return msgspec.json.schema_components((cluster_wire.FromFollower, cluster_wire.FromLeader))


def _digest(parts: list[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:12]
