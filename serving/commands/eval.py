"""Measures what a deployment's model knows of a text: perplexity, and how far it agrees with another deployment of it.

The text is read in windows; each token is scored by those before it in its window. Against another deployment of the
same tokenizer (the model before it was quantized), it also says how often both would choose the same token, and how far
their distributions are apart. --needle hides sentences in the text and asks for them: what long contexts lose in the
pages.
"""

import argparse
import asyncio
import dataclasses
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from serving.commands.argument_types import count
from serving.commands.deployment_flags import add_deployment_flags, deployment_from, path_of_deployment
from serving.commands.progress_bar import progress_bar
from serving.config import Deployment, load_deployment
from serving.errors import ConfigError
from serving.quality.agreement import agreement
from serving.quality.expert_load import ExpertLoad
from serving.quality.needles import Retrieval, needles, retrieval
from serving.quality.scored_text import ScoredText, read_text, score_all, windows


def add_parser(parser: argparse.ArgumentParser) -> None:
    add_deployment_flags(parser, server=False)
    # argparse would show the deployment last, behind --text, which takes all that follows it.
    parser.usage = "%(prog)s (DEPLOYMENT | --model DIR) [flags] --text FILE [FILE ...]"
    parser.add_argument("--text", type=Path, nargs="+", required=True, metavar="FILE", help="UTF-8 text to score")
    parser.add_argument("--against", metavar="DEPLOYMENT", help="the deployment to compare with, as the model in full")
    parser.add_argument("--needle", action="store_true", help="also ask for sentences hidden in the text")
    parser.add_argument("--expert-load", action="store_true", help="also how evenly tokens fall on routed experts")
    parser.add_argument("--window", type=count, metavar="N", help="tokens of a window (512, or what the model takes)")
    parser.add_argument("--max-tokens", type=count, default=20_000, metavar="N", help="tokens of the text to score")
    parser.add_argument("--json", action="store_true", help="print every number as JSON")


def run(args: argparse.Namespace) -> int:
    if args.deployment is None and args.model is None:
        raise ConfigError(
            "give a deployment or --model DIR, and a deployment before --text, which takes every name behind it",
            param="deployment",
        )
    deployment = deployment_from(args)
    other = None if args.against is None else load_deployment(path_of_deployment(args.against))
    text, notes = read_text(args.text), Console(stderr=True)
    scored, found, load = _measured(deployment, text, args, notes)
    record = {"deployment": deployment.name, "tokens": scored.count, "perplexity": scored.perplexity}
    if found is not None:
        record["needles"] = dataclasses.asdict(found)
    if load is not None:
        record["expert_load"] = load
    if other is not None:
        right, right_found, _ = _measured(other, text, args, notes)
        if right.token_ids != scored.token_ids:
            raise ConfigError(f"{args.against} splits the text into other tokens: it is no deployment of this model")
        record["against"] = {"deployment": other.name, "perplexity": right.perplexity}
        if right_found is not None:
            record["against"]["needles"] = dataclasses.asdict(right_found)
        record["agreement"] = dataclasses.asdict(agreement(right, scored))
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(record)).decode())
    else:
        _print(record, Console(highlight=False))
    return 0


def _measured(
    deployment: Deployment, text: str, args: argparse.Namespace, notes: Console
) -> tuple[ScoredText, Retrieval | None, dict[str, float] | None]:
    """One engine after another: two models at once may not fit. Raises ConfigError for experts that are none."""
    from serving.app import build_engine, window_of  # here, because only some commands should wait for JAX
    from serving.generation.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(deployment.model.checkpoint)
    longest = min(window_of(deployment), args.window or 512)
    parts = windows(tokenizer, text, longest, args.max_tokens)
    load = ExpertLoad()
    hidden = needles(tokenizer, text, window_of(deployment)) if args.needle else []
    with notes.status(f"loading {deployment.name}"):
        engine = build_engine(deployment, watch=load.add if args.expert_load else None)

    async def main() -> tuple[ScoredText, Retrieval | None]:
        try:
            with progress_bar(notes, "windows", len(parts)) as advance:
                scored = ScoredText(await score_all(engine, parts, advance))
            return scored, await retrieval(engine, hidden) if hidden else None
        finally:
            await engine.close()

    scored, found = asyncio.run(main())
    if not args.expert_load:
        return scored, found, None
    if not load.figures():
        raise ConfigError(f"{deployment.name} has no routed experts: leave --expert-load out", param="expert-load")
    return scored, found, load.figures()


def _print(record: dict, console: Console) -> None:
    table = Table("", record["deployment"], *([record["against"]["deployment"]] if "against" in record else []))
    other = record.get("against", {})
    rows = [("perplexity", record["perplexity"], other.get("perplexity"))]
    if "needles" in record:
        rows.append(("needles found", record["needles"]["share"], other.get("needles", {}).get("share")))
    rows += [(f"experts: {name.replace('_', ' ')}", value) for name, value in record.get("expert_load", {}).items()]
    for name, *values in rows:
        table.add_row(name, *(f"{value:,.4f}" for value in values if value is not None))
    console.print(f"{record['tokens']:,} tokens scored")
    console.print(table)
    if "agreement" in record:
        for name, value in record["agreement"].items():
            console.print(f"{name.replace('_', ' '):<34}{value:>12.5f}")
