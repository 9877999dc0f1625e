"""Compiles a deployment for a machine that is not at hand, and says whether it fits there and how fast it can be.

The real compiler of the target is used: libtpu for TPUs (the tpu extra), jax's CUDA plugin for GPUs (the gpu extra).
"""

import argparse
import os

import msgspec
from rich.console import Console

from serving.commands.deployment_flags import add_deployment_flags, deployment_from


def add_parser(parser: argparse.ArgumentParser) -> None:
    add_deployment_flags(parser, server=False)
    parser.add_argument(
        "--topology",
        metavar="CHIP:SIZE",
        help="as v5p:2x2x2 or h100:8; by default the deployment's own (plan.topology)",
    )
    parser.add_argument("--json", action="store_true", help="print every number as JSON")


def run(args: argparse.Namespace) -> int:
    """0 where it fits, 1 where it does not."""
    deployment = deployment_from(args)
    # The compilers need no device; without this JAX would look for one of the machine that is planned for.
    os.environ["JAX_PLATFORMS"] = "cpu"
    from serving.planner.deployment_plan import make_plan  # here, because only some commands should wait for JAX
    from serving.planner.report import plan_record, print_plan

    notes = Console(stderr=True)
    with notes.status("reading the deployment") as status:
        plan = make_plan(deployment, args.topology, status.update)
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(plan_record(plan))).decode())
    else:
        print_plan(plan, Console(highlight=False))
    return 0 if plan.fits else 1
