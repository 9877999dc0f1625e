"""What the hosts say of themselves -> what stands in the way, and what will only be slow."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scripts.launcher.hosts import Answer

LEAST_FREE = 0.9  # of a GPU's memory; less, and another process has it
_NEEDED = {"gpu": ("jax-cuda13-plugin", "jax-cuda12-plugin"), "tpu": ("libtpu",), "cpu": ()}


@dataclass(frozen=True, slots=True)
class Findings:
    """By host, or for all of them ("")."""

    problems: tuple[tuple[str, str], ...]
    warnings: tuple[tuple[str, str], ...]


def facts_of(answer: Answer) -> dict[str, Any] | str:
    """What a probe printed; a text where it did not run."""
    last = answer.out.strip().splitlines()[-1:]  # a login shell may greet before
    try:
        facts = json.loads(last[0]) if answer.code == 0 and last else None
    except ValueError:
        facts = None
    if isinstance(facts, dict):
        return facts
    said = (answer.err or answer.out).strip().splitlines()
    return f"cannot be asked (exit code {answer.code}): {said[-1] if said else 'it says nothing'}"


def check(hosts: Mapping[str, dict[str, Any] | str], kind: str, devices: int) -> Findings:
    """`hosts` by name, the leader first; `devices` that the mesh takes in all."""
    problems: list[tuple[str, str]] = []
    warnings: list[tuple[str, str]] = []
    known = {name: facts for name, facts in hosts.items() if isinstance(facts, dict)}
    problems += [(name, facts) for name, facts in hosts.items() if isinstance(facts, str)]
    for name, facts in known.items():
        problems += [(name, text) for text in _of_host(facts, kind)]
    problems += [("", text) for text in _alike(known, kind)]
    if len(known) == len(hosts) and not problems:
        problems += [("", text) for text in _enough(known, devices)]
    for name, facts in list(known.items())[1:]:
        if not facts["cache"].get("found"):
            warnings.append((name, "does not see the leader's compiled programs, and will compile at each start"))
    return Findings(tuple(problems), tuple(warnings))


def _of_host(facts: dict[str, Any], kind: str) -> Sequence[str]:
    texts = []
    versions, devices = facts["versions"], facts["devices"]
    if "weft" not in versions:
        texts.append("weft is not installed there")
    if _NEEDED[kind] and not set(_NEEDED[kind]) & set(versions):
        texts.append(f"jax there has no {kind.upper()}s: install weft[{kind}]")
    if "problem" in devices:
        texts.append(devices["problem"])
    elif not devices["names"]:
        texts.append(f"no {kind.upper()} was found")
    for number, (free, total) in enumerate(zip(devices.get("free", ()), devices.get("total", ()), strict=True)):
        if free < LEAST_FREE * total:
            texts.append(f"GPU {number} has {free >> 20} of {total >> 20} MiB free: another process uses it")
    if devices.get("held"):
        texts.append(f"its TPU is held by process {', '.join(devices['held'])}")
    texts += [f"port {port} is taken" for port in facts["taken_ports"]]
    if "problem" in facts["cache"]:
        texts.append(f"compiled programs cannot be kept: {facts['cache']['problem']}")
    return texts


def _alike(known: Mapping[str, dict[str, Any]], kind: str) -> Sequence[str]:
    """Hosts that differ would not run the same programs."""
    texts = []
    names = sorted({name for facts in known.values() for name in facts["versions"]})
    compared = {name: {host: facts["versions"].get(name, "none") for host, facts in known.items()} for name in names}
    if kind == "gpu":
        compared["driver"] = {host: facts["devices"].get("driver", "none") for host, facts in known.items()}
    compared["devices"] = {host: _counted(facts["devices"].get("names", [])) for host, facts in known.items()}
    for name, by_host in compared.items():
        if len(set(by_host.values())) > 1:
            texts.append(f"{name} differs: {', '.join(f'{value} on {host}' for host, value in by_host.items())}")
    return texts


def _enough(known: Mapping[str, dict[str, Any]], devices: int) -> Sequence[str]:
    found = sum(len(facts["devices"]["names"]) for facts in known.values())
    if found < devices or (len(known) > 1 and found != devices):
        return [f"the mesh takes {devices} devices, and {len(known)} hosts have {found}: name a mesh that takes these"]
    return []


def _counted(names: Sequence[str]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in sorted(set(names))) or "none"
