"""python -m scripts.check_feature_pairs: every pair of the engine's features against a plain engine, as a table.

Exit code 1 where some pair draws other tokens, or a feature was not seen at work.
"""

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from scripts.flags import flags_of

# Four devices on one host, and programs that are compiled quickly rather than well.
XLA_FLAGS = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"


def main() -> int:
    os.environ.setdefault("XLA_FLAGS", XLA_FLAGS)
    # Here, because JAX reads its flags when it is imported.
    from scripts.check_feature_pairs.features import BY_NAME, FEATURES
    from scripts.check_feature_pairs.laboratory import Laboratory
    from scripts.check_feature_pairs.table import Checked, PairCheck, all_pairs, as_table, checked

    parser = flags_of(__doc__)
    parser.add_argument("--features", metavar="A,B", help=f"only these; known: {', '.join(BY_NAME)}")
    parser.add_argument("--of", metavar="NAME", choices=[*BY_NAME], help="only pairs that have this one")
    parser.add_argument("--seed", type=int, default=1, help="of prompts and draws")
    args = parser.parse_args()
    features = FEATURES if args.features is None else tuple(BY_NAME[name] for name in args.features.split(","))

    async def run() -> list[Checked]:
        found = []
        with tempfile.TemporaryDirectory() as folder:
            check = PairCheck(Laboratory(Path(folder)), args.seed)
            pairs = [pair for pair in all_pairs(features) if args.of is None or BY_NAME[args.of] in pair]
            begin = time.monotonic()
            async for one in checked(check, pairs):
                found.append(one)
                names = " + ".join(feature.name for feature in one.pair)
                idle = f", not seen at work: {', '.join(one.idle)}" if one.idle else ""
                if one.verdict != "same" or one.idle:
                    print(f"{names}: {one.verdict} {one.detail}{idle}", flush=True)
            print(f"{len(pairs)} pairs in {time.monotonic() - begin:.0f} s, seed {args.seed}")
        return found

    found = asyncio.run(run())
    Console(width=200).print(as_table(found, features))
    print("= the plain engine's tokens   ~ but for a rounding tie   X other tokens   - refused")
    print("° a feature of the pair was not seen at work")
    return int(any(one.verdict == "other" or one.idle for one in found))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
