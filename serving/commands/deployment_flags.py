"""What to serve, as flags: a deployment file or a model directory, and the settings that people change by hand."""

import argparse
import dataclasses
from pathlib import Path
from typing import get_args

from serving.commands.argument_types import count, listed, port, sendable
from serving.commands.cluster_flags import add_cluster_flags, cluster_arguments, cluster_from
from serving.config import (
    Deployment,
    EngineConfig,
    ModelConfig,
    ServerConfig,
    check_limits,
    load_deployment,
    load_mesh,
)
from serving.errors import ConfigError
from serving.observability.logs import LogFormat
from serving.settings.model import Activations, CacheDtype, Dtype, Quantization

_MODEL_FLAGS = ("checkpoint", "dtype", "quantization", "group_size", "activations", "chat_template")
_ENGINE_FLAGS = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "cache_dtype")
_SERVER_FLAGS = ("host", "port", "grpc_port", "allowed_hosts", "allowed_origins")
_PROCESS_FLAGS = ("log_format",)
_FOLDERS = (Path("configs/deployments"), Path(__file__).resolve().parents[2] / "configs" / "deployments")


def add_deployment_flags(parser: argparse.ArgumentParser, *, server: bool) -> None:
    """`server`: also the flags of a process that listens."""
    parser.add_argument("deployment", nargs="?", help="a deployment file, or the name of one in configs/deployments")
    group = parser.add_argument_group("deployment", "instead of a deployment file, or over its values")
    group.add_argument("--model", type=Path, metavar="DIR", help="serve this checkpoint, with defaults for the rest")
    group.add_argument(
        "--checkpoint", type=Path, metavar="DIR", help="the deployment's weights, instead of where it says"
    )
    group.add_argument("--served-model-name", type=sendable, metavar="NAME", help="the model id that clients send")
    group.add_argument("--dtype", choices=get_args(Dtype), help="of weights and computation")
    group.add_argument("--quantization", choices=get_args(Quantization), help="round weights to this while loading")
    group.add_argument("--group-size", type=count, metavar="N", help="rows that share a scale in int4 (128)")
    group.add_argument("--activations", choices=get_args(Activations), help="multiply in 8 bits, where the chip can")
    group.add_argument(
        *("--cache-dtype", "--kv-cache-dtype"), dest="cache_dtype", choices=get_args(CacheDtype), help="of pages"
    )
    group.add_argument("--chat-template", type=Path, metavar="FILE", help="instead of the checkpoint's own")
    group.add_argument("--max-model-len", type=count, metavar="N", help="tokens, prompt and output together")
    group.add_argument("--max-num-seqs", type=count, metavar="N", help="streams that run at once")
    group.add_argument("--max-num-batched-tokens", type=count, metavar="N", help="tokens of one step")
    group.add_argument(
        "--mesh", type=Path, metavar="FILE", help="devices to split the model over, as in configs/meshes"
    )
    if server:
        group.add_argument("--host", help="the address to listen on")
        group.add_argument("--port", type=port, metavar="N", help="the port to listen on; 0: any free one")
        group.add_argument("--grpc-port", type=port, metavar="N", help="the port for gRPC (default: none)")
        group.add_argument(
            "--allowed-hosts", type=listed, metavar="A,B", help="names that clients use for this server; *: any"
        )
        group.add_argument(
            "--allowed-origins", type=listed, metavar="A,B", help="of web pages that may call it, as https://chat.lan"
        )
        group.add_argument("--log-format", choices=get_args(LogFormat), help="of every line on stderr")
        add_cluster_flags(parser)


def deployment_from(args: argparse.Namespace) -> Deployment:
    """The deployment that the flags describe. Raises ConfigError."""
    if (args.deployment is None) == (args.model is None):
        raise ConfigError("give a deployment or --model DIR, one of the two", param="model")
    if args.checkpoint is not None and args.model is not None:
        raise ConfigError(
            "--checkpoint goes with a deployment; --model serves a directory by itself", param="checkpoint"
        )
    deployment = load_deployment(path_of_deployment(args.deployment)) if args.model is None else _of_model(args.model)
    deployment = dataclasses.replace(
        deployment,
        name=deployment.name if args.served_model_name is None else args.served_model_name,
        model=dataclasses.replace(deployment.model, **_given(args, _MODEL_FLAGS)),
        engine=dataclasses.replace(deployment.engine, **_given(args, _ENGINE_FLAGS)),
        server=dataclasses.replace(deployment.server, **_given(args, _SERVER_FLAGS)),
        cluster=cluster_from(args, deployment.cluster),
        **_given(args, _PROCESS_FLAGS),
    )
    if args.mesh is not None:
        deployment = dataclasses.replace(deployment, mesh=load_mesh(args.mesh))
    check_limits(deployment, "the command line")
    return deployment


def deployment_arguments(args: argparse.Namespace) -> list[str]:
    """The same flags again, for a child process."""
    arguments = [] if args.deployment is None else [args.deployment]
    names = ("model", "served_model_name", "mesh", *_MODEL_FLAGS, *_ENGINE_FLAGS, *_SERVER_FLAGS, *_PROCESS_FLAGS)
    for name, value in _given(args, names).items():
        text = ",".join(value) if isinstance(value, tuple) else value
        arguments += [f"--{name.replace('_', '-')}={text}"]
    return arguments + cluster_arguments(args)


def _given(args: argparse.Namespace, names: tuple[str, ...]) -> dict:
    """Those of the flags that were set, by name."""
    return {name: value for name in names if (value := getattr(args, name, None)) is not None}


def _of_model(directory: Path) -> Deployment:
    if not directory.is_dir():
        raise ConfigError(f"--model {directory}: there is no such directory", param="model")
    checkpoint = directory.resolve()
    return Deployment(
        name=checkpoint.name, model=ModelConfig(checkpoint=checkpoint), engine=EngineConfig(), server=ServerConfig()
    )


def path_of_deployment(given: str) -> Path:
    """A path as it is; a bare name from the first folder of deployments that has it."""
    if "/" in given or given.endswith(".toml"):
        return Path(given)
    for folder in _FOLDERS:
        if (path := folder / f"{given}.toml").is_file():
            return path
    known = sorted({path.stem for folder in _FOLDERS for path in folder.glob("*.toml")})
    raise ConfigError(
        f"there is no deployment {given!r} in configs/deployments; there: {', '.join(known) or 'none'}",
        param="deployment",
    )
