"""What moderation finds, misses and costs, with the demo model and the real encoder in one process.

Errors: of each set of judges on the held-out texts. Costs: at the gate of all protocols, without HTTP. What leaks: the
model is made to say held-out texts by a grammar, between sentences that are clean.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from scripts.moderation.error_rates import KIN, table
from scripts.moderation.labelled import held_out_items
from scripts.moderation.local_encoder import local_encoder
from serving.api.caller import Caller
from serving.api.chat_body import ChatBody
from serving.api.chat_reply import ChatReply
from serving.api.service import Service, new_id
from serving.api.typed_body import typed
from serving.app import build_api, build_engine
from serving.config import Deployment, EmbeddingsConfig, EngineConfig, load_deployment
from serving.engine.client import Engine
from serving.engine.local import LocalEngine
from serving.engine.request import FinishReason
from serving.orchestrator.moderation.judges.similarity import BENIGN
from serving.settings.moderation import JudgeConfig, ModerationConfig, PolicyConfig, RuleConfig

BEFORE = "The weather is mild and the train is on time. "
AFTER = " The garden needs some water in the evening, and the shops close at eight."
QUESTION = "Tell me about weft."
CATEGORIES = tuple(dict.fromkeys(name for names in KIN.values() for name in names))


def moderation(kinds: Sequence[str], folder: Path, *, sides: str, lead: int = 0) -> ModerationConfig:
    files = {"head": folder / "head.safetensors", "similarity": folder / "examples.toml"}
    judges = {kind: JudgeConfig(kind=kind, path=files.get(kind), timeout_seconds=120) for kind in kinds}  # type: ignore[arg-type]
    rules = tuple(
        RuleConfig(
            category=name,
            input="block" if "input" in sides else "annotate",
            output="cut" if "output" in sides else None,
        )
        for name in CATEGORIES
    )
    return ModerationConfig(judges=judges, policies={"p": PolicyConfig(rules=rules, lead_tokens=lead)}, policy="p")


@dataclass(frozen=True, slots=True)
class Seen:
    first: float  # seconds to the first delta
    seconds: float
    text: str
    tokens: int
    reason: FinishReason | None


async def answered(service: Service, question: str, **fields: object) -> Seen:
    messages = [{"role": "user", "content": question}]
    body = typed(ChatBody, {"messages": messages, "temperature": 0, "stream": True, **fields})
    begin = time.monotonic()
    first, text, tokens, reason = 0.0, "", 0, None
    generation = ChatReply(service, body, Caller(request_id=new_id())).generation
    async with aclosing(generation.deltas()) as deltas:
        async for _, delta in deltas:
            first = first or time.monotonic() - begin
            text, tokens, reason = text + delta.text, delta.usage.completion_tokens, delta.finish_reason
    return Seen(first, time.monotonic() - begin, text, tokens, reason)


async def first_tokens(services: dict[str, Service], rounds: int) -> None:
    """All in turn, so that what else the machine does falls on all alike."""
    waits: dict[str, list[float]] = {name: [] for name in services}
    for at in range(rounds + 1):
        for name, service in services.items():
            seen = await answered(service, f"{QUESTION} Number {at}, please.", max_tokens=40, ignore_eos=True)
            if at:
                waits[name].append(seen.first * 1000)
    none = median(waits["off"])
    print(f"\n| Time to the first token, {rounds} requests | median ms | added |\n|---|---|---|")
    for name, found in waits.items():
        print(f"| {name} | {median(found):.1f} | {median(found) - none:+.1f} |")


async def throughput(services: dict[str, Service], rounds: int, streams: int = 8, tokens: int = 96) -> None:
    rates: dict[str, list[float]] = {name: [] for name in services}
    for at in range(rounds + 1):
        for name, service in services.items():
            begin = time.monotonic()
            asked = (
                answered(service, f"{QUESTION} {at} {each}", max_tokens=tokens, ignore_eos=True)
                for each in range(streams)
            )
            seen = await asyncio.gather(*asked)
            if at:
                rates[name].append(sum(one.tokens for one in seen) / (time.monotonic() - begin))
    none = median(rates["off"])
    print(f"\n| {streams} streams of {tokens} tokens, {rounds} rounds | median tokens/s | cost |\n|---|---|---|")
    for name, found in rates.items():
        print(f"| {name} | {median(found):.0f} | {1 - median(found) / none:.1%} |")


async def leaks(services: dict[str, Service], harmful: Sequence[str], benign: Sequence[str]) -> None:
    print(f"\n| {len(harmful)} answers with a held-out harmful text | cut | tokens of it shown: median, most |", end="")
    print(" tokens after it shown: most | benign answers cut |\n|---|---|---|---|---|")
    for name, service in services.items():
        inside, after, cut, wrong = [], [], 0, 0
        for text in harmful:
            seen = await _said(service, text)
            if seen.reason is not FinishReason.CONTENT_FILTER:
                continue
            cut += 1
            inside.append(_tokens(service, seen.text[len(BEFORE) : len(BEFORE) + len(text)]))
            after.append(_tokens(service, seen.text[len(BEFORE) + len(text) :]))
        for text in benign:
            wrong += (await _said(service, text)).reason is FinishReason.CONTENT_FILTER
        shown = f"{median(inside):.0f}, {max(inside)} | {max(after)}" if cut else "- | -"
        print(f"| {name} | {cut} | {shown} | {wrong} of {len(benign)} |")


async def _said(service: Service, text: str) -> Seen:
    return await answered(service, "Go on.", max_tokens=300, guided_choice=[BEFORE + text + AFTER])


def _tokens(service: Service, text: str) -> int:
    return len(service.generator.tokenizer.encode(text, add_special_tokens=False)) if text else 0


def service_of(deployment: Deployment, engine: Engine, config: ModerationConfig | None) -> Service:
    embedder = engine.embedder if isinstance(engine, LocalEngine) else None
    return build_api(replace(deployment, moderation=config), engine, embedder=embedder).state.service


async def served(arguments: argparse.Namespace, deployment: Deployment) -> None:
    engine = build_engine(deployment)
    folder = arguments.judges
    try:
        made = {
            "off": None,
            "rules, input": moderation(["rules"], folder, sides="input"),
            "rules and head, input": moderation(["rules", "head"], folder, sides="input"),
            "rules, input and output": moderation(["rules"], folder, sides="input output"),
            "rules and head, input and output": moderation(["rules", "head"], folder, sides="input output"),
            "the same, with a lead of 24": moderation(["rules", "head"], folder, sides="input output", lead=24),
        }
        services = {name: service_of(deployment, engine, config) for name, config in made.items()}
        await first_tokens(services, arguments.rounds)
        await throughput(services, max(2, arguments.rounds // 4))
        items = held_out_items()
        harmful = [item.text for item in items if item.label != BENIGN][:: arguments.every]
        benign = [item.text for item in items if item.label == BENIGN][:: arguments.every]
        asked = {
            "rules and head": moderation(["rules", "head"], folder, sides="output"),
            "rules and head, a lead of 24": moderation(["rules", "head"], folder, sides="output", lead=24),
        }
        await leaks({name: service_of(deployment, engine, config) for name, config in asked.items()}, harmful, benign)
    finally:
        await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench_moderation", description=__doc__)
    parser.add_argument("--encoder", type=Path, default=Path(".build/encoder"), help="its folder")
    parser.add_argument("--judges", type=Path, default=Path("configs/moderation"), help="of the head and the examples")
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="requests that the first token is timed of")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="of the held-out texts, said by the model")
    parser.add_argument("--errors-only", action="store_true", help="no model")
    arguments = parser.parse_args()
    print(table(local_encoder(arguments.encoder), arguments.judges), flush=True)
    if arguments.errors_only:
        return
    demo = load_deployment(Path("configs/deployments/demo.toml"))
    engine = EngineConfig(max_num_seqs=8, max_num_batched_tokens=64, cache_bytes=64 << 20, max_model_len=512)
    encoder = EmbeddingsConfig(checkpoint=arguments.encoder.resolve(), name="encoder")
    asyncio.run(served(arguments, replace(demo, engine=engine, embeddings=encoder)))


if __name__ == "__main__":
    main()
