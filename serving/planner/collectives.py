"""The collectives of a compiled program, read from its HLO: how often each runs in a step, and what it sends.

A scan over layers stands in the text once: what is in a loop's body counts as often as the loop runs. XLA:GPU writes
that number beside the loop; libtpu does not, so there it is the caller's, who knows how many layers are scanned.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute")

HAND_OVER = "hand-over"  # between the stages of a pipeline: no collective, but it crosses the same links

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?(?P<name>[\w.-]+) (?:\([^{]*)?.*\{$")
_COLLECTIVE = re.compile(rf" = (?P<shape>.*?) (?P<kind>{'|'.join(KINDS)})(?P<start>-start)?\(")
_CALL = re.compile(r"\b(?:body|condition|to_apply|calls|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_ARRAY = re.compile(r"(?P<type>[a-z]+\d*(?:e\dm\d\w*)?)\[(?P<sides>[\d,]*)\]")
_GROUP_LIST = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_GROUP_IOTA = re.compile(r"replica_groups=\[\d+,(\d+)\]")
_GROUP_MESH = re.compile(r"replica_groups=mesh\[(?P<axes>[^\]]*)\][^{]*\{(?P<named>[^}]*)\}")
_AXIS = re.compile(r"'([^']+)'=(\d+)")


@dataclass(frozen=True, slots=True)
class Collective:
    """One kind and size. `size`: bytes of its result on one device; `group`: devices that take part."""

    kind: str
    size: int
    group: int

    @property
    def sent(self) -> float:
        """Bytes that one device sends, done as a ring (Chan et al., "Collective communication", 2007)."""
        others = (self.group - 1) / self.group
        if self.kind == "all-reduce":
            return 2 * others * self.size
        if self.kind == "reduce-scatter":
            return (self.group - 1) * self.size
        if self.kind in ("collective-permute", HAND_OVER):
            return self.size
        return others * self.size


def collectives_of(hlo: str, layers: int) -> Counter[Collective]:
    """How often each collective runs when the program does, whose loops of untold length run over `layers`."""
    computations = dict(_computations(hlo))
    entry = next(name for name, lines in computations.items() if lines[0].startswith("ENTRY"))
    return _counted(entry, computations, layers)


def _counted(name: str, computations: dict[str, list[str]], layers: int) -> Counter[Collective]:
    found: Counter[Collective] = Counter()
    for line in computations[name][1:]:
        match = _COLLECTIVE.search(line)
        if match is not None:
            one = _collective(match, line)
            found[_of_its_rows(one, line, computations[name]) if one.kind == "ragged-all-to-all" else one] += 1
            continue
        for called in _called(line):
            if called in computations:
                for collective, count in _counted(called, computations, layers).items():
                    found[collective] += count * _runs(line, layers)
    return found


def _runs(line: str, layers: int) -> int:
    if " while(" not in line:
        return 1
    told = _TRIPS.search(line)
    return int(told[1]) if told else layers


def _called(line: str) -> list[str]:
    names = _CALL.findall(line)
    if branches := _BRANCHES.search(line):
        names += [name.strip().lstrip("%") for name in branches[1].split(",")]
    return names


def _computations(hlo: str) -> Iterator[tuple[str, list[str]]]:
    """Each computation's name and its lines, the first of which opens it."""
    name, lines = "", []
    for line in hlo.splitlines():
        opening = _COMPUTATION.match(line)
        if opening is not None and not line.startswith(" "):
            name, lines = opening["name"], [line]
        elif line.startswith("}") and name:
            yield name, lines
            name = ""
        elif name:
            lines.append(line)


def _collective(match: re.Match[str], line: str) -> Collective:
    sizes = [_size(array) for array in _ARRAY.finditer(match["shape"])]
    size = sum(sizes)
    if match["start"] and match["shape"].startswith("("):
        # A start returns its operands beside its results: for an all-reduce as large, for an all-gather smaller.
        size = size // 2 if match["kind"] == "all-reduce" else max(sizes)
    return Collective(match["kind"], size, _group(line))


def _of_its_rows(one: Collective, line: str, lines: list[str]) -> Collective:
    """A ragged all-to-all by the rows that are sent: one side has them, the other has room for all that could arrive.

    Its first two operands are the rows to send and what the arriving ones are written into.
    """
    sizes = [one.size]
    for name in re.findall(r"%([\w.-]+)", line.split("ragged-all-to-all", 1)[1].split("(", 1)[1])[:2]:
        defined = next((text for text in lines if text.strip().removeprefix("ROOT ").startswith(f"%{name} = ")), "")
        arrays = [_size(array) for array in _ARRAY.finditer(defined.split(" = ", 1)[-1].split("(", 1)[0])]
        sizes += arrays[:1]
    return Collective(one.kind, min(sizes), one.group)


def _group(line: str) -> int:
    """Devices of one group, which XLA writes in three ways."""
    if named := _GROUP_MESH.search(line):
        sizes = {axis: int(size) for axis, size in _AXIS.findall(named["axes"])}
        return math.prod(sizes[axis] for axis in re.findall(r"'([^']+)'", named["named"]))
    if iota := _GROUP_IOTA.search(line):
        return int(iota[1])
    if listed := _GROUP_LIST.search(line):
        return len(listed[1].split(","))
    if "source_target_pairs=" in line:  # of a collective-permute: from one device to one other
        return 2
    raise ValueError(f"a collective without readable groups: {line.strip()[:200]}")


def _size(array: re.Match[str]) -> int:
    count = 1
    for side in filter(None, array["sides"].split(",")):
        count *= int(side)
    kind = array["type"]
    digits = re.search(r"\d+", kind)
    bits = 8 if kind == "pred" or digits is None else int(digits[0])
    return count * bits // 8
