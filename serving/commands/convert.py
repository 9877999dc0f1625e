"""Writes a checkpoint of the hub's in weft's own layout: its weights fused and transposed as they are computed with.

Each device of a mesh then reads its own part of the files (Orbax), on any mesh. The copy is served like the original:
weft serve --model OUT. It needs as much disk as the original, and as much memory as one layer.
"""

import argparse
import os
import signal
from pathlib import Path
from typing import get_args

from rich.console import Console

from serving.commands.progress_bar import progress_bar
from serving.settings.model import Dtype

_MEBIBYTE = 1 << 20


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, metavar="HUB_DIR", help="a checkpoint directory in the hub's layout")
    parser.add_argument("target", type=Path, metavar="OUT", help="the directory to write; it must not exist yet")
    parser.add_argument(
        "--dtype", choices=get_args(Dtype), help="of the weights written; without it bfloat16 where all of them are"
    )


def run(args: argparse.Namespace) -> int:
    from serving.engine.conversion import convert_checkpoint  # here, because it loads JAX

    console = Console()
    nbytes = sum(file.stat().st_size for file in args.source.glob("*.safetensors"))
    try:
        with progress_bar(console, "converting, MiB", total=nbytes // _MEBIBYTE) as advance:
            shown = 0

            def progress(done: int, total: int) -> None:
                nonlocal shown
                advance(done // _MEBIBYTE - shown)
                shown = done // _MEBIBYTE

            convert_checkpoint(args.source, args.target, args.dtype, progress)
    except KeyboardInterrupt:  # at once: Python's own end waits for Orbax's threads, minutes long
        os._exit(128 + signal.SIGINT)
    console.print(f"wrote {args.target}", highlight=False)
    return 0
