"""What a benchmark sends, as flags."""

import argparse
import random
import secrets
from dataclasses import replace

from serving.bench.workload import Item, Workload, items
from serving.commands.argument_types import count, count_or_none, id_range, share

_WARM_UP_SEED = -1
_TOKEN_IDS = (100, 999)  # of any vocabulary, and no special ones


def add_workload_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("workload", "lengths in tokens")
    group.add_argument("--num-prompts", type=count, default=64, metavar="N", help="default: %(default)s")
    group.add_argument("--input-len", type=count, default=128, metavar="N", help="default: %(default)s")
    group.add_argument("--output-len", type=count, default=128, metavar="N", help="default: %(default)s")
    group.add_argument("--input-len-range", type=share, default=0.0, metavar="R", help="spread it over (1-R)..(1+R)")
    group.add_argument("--output-len-range", type=share, default=0.0, metavar="R", help="spread it over (1-R)..(1+R)")
    group.add_argument(
        "--shared-prefix-len", type=count_or_none, default=0, metavar="N", help="the same tokens before every prompt"
    )
    group.add_argument("--token-ids", type=id_range, metavar="LOW-HIGH", help="default: 100-999")
    group.add_argument("--seed", type=int, default=0, help="of lengths and arrivals; the prompts are new in every run")


def workload_from(args: argparse.Namespace) -> Workload:
    first_token_id, last_token_id = args.token_ids or _TOKEN_IDS
    return Workload(
        num_prompts=args.num_prompts,
        input_len=args.input_len,
        output_len=args.output_len,
        input_range=args.input_len_range,
        output_range=args.output_len_range,
        shared_prefix_len=args.shared_prefix_len,
        first_token_id=first_token_id,
        last_token_id=last_token_id,
    )


def measured_items(workload: Workload, seed: int) -> list[Item]:
    return items(workload, random.Random(seed), random.Random(secrets.randbits(64)))


def warm_up_items(workload: Workload, number: int) -> list[Item]:
    """Of the same lengths, all at once, and of contents that the measured ones do not share."""
    plain = replace(workload, num_prompts=number, rate=None)
    return items(plain, random.Random(_WARM_UP_SEED), random.Random(secrets.randbits(64)))
