"""The hosts that serve one model, as flags: for launchers, which know addresses that no deployment file does."""

import argparse
import dataclasses

from serving.commands.argument_types import count
from serving.config import ClusterConfig

_FLAGS = ("processes", "coordinator", "listen")


def add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cluster", "over the deployment's [cluster] table; the same on every host")
    group.add_argument("--processes", type=count, metavar="N", help="hosts that hold the model together")
    group.add_argument("--coordinator", metavar="HOST:PORT", help="of process 0, as the other hosts reach it")
    group.add_argument("--listen", metavar="ADDRESS", help="of process 0, to listen on (default: that of HOST)")


def cluster_from(args: argparse.Namespace, cluster: ClusterConfig) -> ClusterConfig:
    return dataclasses.replace(cluster, **_given(args))


def cluster_arguments(args: argparse.Namespace) -> list[str]:
    """The same flags again, for a child process."""
    return [f"--{name}={value}" for name, value in _given(args).items()]


def _given(args: argparse.Namespace) -> dict:
    return {name: value for name in _FLAGS if (value := getattr(args, name, None)) is not None}
