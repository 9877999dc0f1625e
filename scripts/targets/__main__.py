"""The whole table of what is compiled without hardware. See scripts/compile_targets."""

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from scripts.targets import deployments, gpu_kernels, tpu_kernels
from scripts.targets.model_shapes import EXPERTS, HEADS, LATENT, of_models
from scripts.targets.tpu import SMALLEST

PARTS = ("tpu", "gpu", "deployments")


def _part(name: str) -> str:
    if name not in PARTS:
        raise argparse.ArgumentTypeError(f"there is no part {name!r}; there is {', '.join(PARTS)}")
    return name


def main() -> int:
    """1 where something that should compile does not, spills, or does not fit."""
    parser = argparse.ArgumentParser(prog="scripts/compile_targets", description=__doc__)
    parser.add_argument("parts", nargs="*", type=_part, metavar="{tpu,gpu,deployments}", help="by default all")
    parser.add_argument(
        "--chips", nargs="+", choices=tuple(SMALLEST), default=list(SMALLEST), help="of tpu; by default all"
    )
    parser.add_argument("--of", default="", metavar="MODEL", help="only models with this in their name, as 'Gemma 2'")
    args = parser.parse_args()
    if not of_models((*HEADS, LATENT, *EXPERTS), args.of):
        parser.error(f"no model of scripts/targets/model_shapes.py has {args.of!r} in its name")
    tables: dict[str, Callable[[], Iterator[bool]]] = {
        "tpu": partial(tpu_kernels.table, args.chips, args.of),
        "gpu": partial(gpu_kernels.table, args.of),
        "deployments": partial(deployments.table, Path("configs/deployments")),
    }
    good = [row for part in args.parts or PARTS for row in tables[part]()]
    print(f"{sum(good)} of {len(good)} as they should be")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
