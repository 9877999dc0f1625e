"""The whole table of families and meshes. See scripts/check_meshes."""

import argparse
import gc
import sys
import tempfile
from pathlib import Path
from typing import Any

from models.registry import FAMILIES
from models.split_experts import Wish
from tests.sharding.eight_devices.tiny_engine import CONFIG, Stream, executor, family, serve, ties
from tests.sharding.eight_devices.tiny_head import HeadDeployment

Mesh = dict[str, int]

DENSE: list[Mesh] = [
    {"tensor": 2},
    {"tensor": 4},
    {"tensor": 8},
    {"data": 4},
    {"data": 2, "tensor": 4},
    {"pipeline": 2},
    {"pipeline": 4},
    {"pipeline": 2, "tensor": 4},
    {"data": 2, "pipeline": 2, "tensor": 2},
]
ROUTED: list[tuple[Mesh, Wish]] = [
    ({"tensor": 8}, "sum"),
    ({"pipeline": 4, "tensor": 2}, "sum"),
    ({"expert": 8}, "sum"),
    ({"expert": 8}, "all-to-all"),
    ({"expert": 2, "tensor": 4}, "sum"),
    ({"data": 4}, "all-to-all"),
    ({"data": 4, "expert": 2}, "sum"),
    ({"data": 2, "expert": 2, "tensor": 2}, "all-to-all"),
    ({"data": 2, "pipeline": 2, "expert": 2}, "all-to-all"),
]
HEADS: list[Mesh] = [{"tensor": 2}, {"tensor": 4}, {"expert": 2, "tensor": 2}]
# Four layers for four stages, eight experts for eight devices.
LARGER: dict[str, Any] = {"num_hidden_layers": 4, "num_local_experts": 8, "num_experts": 8, "n_routed_experts": 8}


def main() -> int:
    """1 where some mesh gives other tokens than one device."""
    every = [name for one in FAMILIES for name in one.architectures]
    parser = argparse.ArgumentParser(prog="scripts/check_meshes", description=__doc__)
    parser.add_argument("architectures", nargs="*", choices=[[], *every], metavar="ARCHITECTURE", help="by default all")
    parser.add_argument("--products", action="store_true", help="only the mesh that has an axis of each kind")
    parser.add_argument("--heads", action="store_true", help="instead, EAGLE-3 heads and what they guess")
    chosen = parser.parse_args()
    if chosen.heads:
        return heads()
    print("| architecture | mesh | experts by | streams that differ |\n|---|---|---|---|", flush=True)
    good = [row for name in chosen.architectures or every for row in rows(name, chosen.products)]
    print(f"{sum(good)} of {len(good)} give the tokens of one device")
    return 0 if all(good) else 1


def rows(name: str, products: bool) -> list[bool]:
    parsed = family(name).parse(CONFIG | LARGER | {"architectures": [name]})
    routed = family(name).shape(parsed).experts > 0
    alone = serve(executor(name, {}, **LARGER))
    meshes: list[tuple[Mesh, Wish]] = ROUTED if routed else [(sizes, "auto") for sizes in DENSE]
    return [row(name, sizes, wish, alone) for sizes, wish in (meshes[-1:] if products else meshes)]


def row(name: str, sizes: Mesh, wish: Wish, alone: list[Stream]) -> bool:
    written = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
    try:
        differing = ties(alone, serve(executor(name, sizes, exchange=wish, **LARGER), sizes.get("pipeline", 1)))
    except AssertionError as error:
        print(f"| {name} | {written} | {wish} | {str(error).splitlines()[0]} |", flush=True)
        return False
    gc.collect()
    print(f"| {name} | {written} | {wish} | {f'{differing} at a tie' if differing else 'none'} |", flush=True)
    return True


def heads() -> int:
    """1 where a head on some mesh makes other guesses than on one device, or its model gives other tokens."""
    good = []
    print("| architecture | mesh | tokens and guesses |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in [name for one in FAMILIES if getattr(one, "gives_states", False) for name in one.architectures]:
            given = HeadDeployment(Path(folder) / name, name)
            alone = given.on()
            tokens, _ = given.streams(alone, guesses=False)
            expected = given.streams(alone)
            good.append(expected[0] == tokens and len(expected[1]) > 5)
            for sizes in HEADS:
                good.append(given.streams(given.on(**sizes)) == expected)
                written = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
                print(f"| {name} | {written} | {'the same' if good[-1] else 'others'} |", flush=True)
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
