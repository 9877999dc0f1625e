"""`weft bench serve` measures any OpenAI-compatible server, `weft bench offline` an engine without one."""

import argparse

from serving.commands import bench_offline, bench_serve


def add_parser(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(required=True, title="what to measure")
    for kind in (bench_serve, bench_offline):
        added = kinds.add_parser(kind.NAME, help=kind.SUMMARY, description=kind.__doc__, allow_abbrev=False)
        kind.add_parser(added)
        added.set_defaults(run_kind=kind.run)


def run(args: argparse.Namespace) -> int:
    return args.run_kind(args)
