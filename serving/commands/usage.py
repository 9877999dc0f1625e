"""What was used, from the ledger that a deployment's usage.ledger names: sums by key, or rows; CSV or JSON lines."""

import argparse
import csv
import sys
from dataclasses import asdict, fields
from pathlib import Path

import msgspec

from serving.commands.argument_types import moment
from serving.errors import SetupError
from serving.gateway.ledger import UsageRow, UsageSum, read_usage, sum_usage


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ledger", type=Path, required=True, metavar="FILE", help="what usage.ledger names")
    parser.add_argument("--since", type=moment, metavar="DATE", help="such as 2026-11-01 or 2026-11-01T12:00 (UTC)")
    parser.add_argument("--until", type=moment, metavar="DATE", help="not included")
    parser.add_argument("--tenant", metavar="NAME", help="this one alone")
    parser.add_argument("--rows", action="store_true", help="every request; default: sums by tenant, key and model")
    parser.add_argument("--format", choices=("csv", "jsonl"), default="csv")


def run(args: argparse.Namespace) -> int:
    if not args.ledger.is_file():
        raise SetupError(f"{args.ledger}: there is no such ledger", param="ledger")
    read = read_usage if args.rows else sum_usage
    rows = read(args.ledger, since=args.since, until=args.until, tenant=args.tenant)
    if args.format == "jsonl":
        for row in rows:
            print(msgspec.json.encode(row).decode())
        return 0
    kind = UsageRow if args.rows else UsageSum
    writer = csv.DictWriter(sys.stdout, [spec.name for spec in fields(kind)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return 0
