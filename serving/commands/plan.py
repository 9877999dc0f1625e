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
    """0 where all models fit, 1 where one does not."""
    deployment = deployment_from(args)
    # The compilers need no device; without this JAX would look for one of the machine that is planned for.
    os.environ["JAX_PLATFORMS"] = "cpu"
    from serving.planner.deployment_plan import make_plan  # here, because only some commands should wait for JAX
    from serving.planner.report import plan_record, print_plan

    notes = Console(stderr=True)
    with notes.status("reading the deployment") as status:
        models = map(deployment.of_model, deployment.model_names)
        plans = [make_plan(model, args.topology, status.update) for model in models]
    if args.json:
        records = [plan_record(plan) for plan in plans]
        told = records[0] if len(records) == 1 else {"models": records}
        print(msgspec.json.format(msgspec.json.encode(told)).decode())
    else:
        console = Console(highlight=False)
        for plan in plans:
            if len(plans) > 1:
                console.rule(plan.deployment)
            print_plan(plan, console)
    return 0 if all(plan.fits for plan in plans) else 1
