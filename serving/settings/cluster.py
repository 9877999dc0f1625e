"""The hosts that hold one model together, a process each (docs/deployment.md)."""

from dataclasses import dataclass

from serving.errors import ConfigError
from serving.web_names import host_and_port, host_name, is_unspecified


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    processes: int = 1  # 1: this host alone
    coordinator: str | None = None  # HOST:PORT of process 0, as the other hosts reach it
    listen: str | None = None  # the address of process 0 to listen on; None: that of coordinator's HOST
    runtime_port: int = 0  # there, of JAX's own coordinator; 0: any free one, another at each start


def check_cluster(cluster: ClusterConfig, where: str) -> None:
    """A port that starts programs must not be open to more than the hosts that need it. Raises ConfigError."""
    if cluster.processes > 1 and cluster.coordinator is None:
        raise ConfigError(
            f"{where}: cluster.coordinator must be given where cluster.processes is {cluster.processes}: HOST:PORT of "
            "process 0, as the other hosts reach it",
            param="coordinator",
        )
    if cluster.coordinator is not None and host_and_port(cluster.coordinator) is None:
        raise ConfigError(
            f"{where}: cluster.coordinator must be HOST:PORT, such as 10.0.0.1:7200, not {cluster.coordinator!r}",
            param="coordinator",
        )
    host, _ = host_and_port(cluster.coordinator or "") or (None, 0)
    for key, name in (("coordinator", host), ("listen", cluster.listen)):
        if name is not None and (host_name(name) is None or is_unspecified(name)):
            raise ConfigError(
                f"{where}: cluster.{key} must name one address, that of the network between the hosts, not {name!r}",
                param=key,
            )
