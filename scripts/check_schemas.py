"""Checks grammars against a directory of the JSON-Schema test suite, without a model.

    python -m scripts.check_schemas DIR [--walks N] [--checkpoint DIR] [--verbose]

For each schema that can be compiled it walks at random over the masks, taking any allowed token, and gives what comes
out to the `jsonschema` package to judge. Walks that do not end in time are steered to an end, and counted apart where
they still do not. Then each instance that the suite calls invalid is written out and must not be accepted.
"""

import argparse
import asyncio
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
from jsonschema.protocols import Validator
from referencing.exceptions import Unresolvable

from serving.engine.constraint import Constraint
from serving.engine.grammars import Grammars
from serving.engine.request import GrammarKind, GrammarSpec
from serving.engine.token_masks import TokenMasks
from serving.engine.vocabulary import Vocabulary
from serving.errors import RequestError
from serving.generation.grammar_vocabulary import vocabulary_of
from serving.generation.tokenizer import load_tokenizer

DEMO = Path(__file__).parents[1] / "configs" / "checkpoints" / "demo"
FREE_TOKENS = 60  # of a walk; then it takes what brings it to an end
MOST_TOKENS = 400


@dataclass
class Result:
    schemas: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # reason -> schemas
    walks: int = 0
    validated: int = 0
    unfinished: int = 0
    unjudged: int = (
        0  # the judge cannot read the schema: a pattern that Python's `re` does not know, a remote reference
    )
    failures: list[str] = field(default_factory=list)
    invalid_instances: int = 0
    valid_instances: int = 0
    valid_accepted: int = 0

    @property
    def supported(self) -> int:
        return self.schemas - self.refused.total()

    def __str__(self) -> str:
        reasons = "".join(f"\n  {count:4} {reason}" for reason, count in self.refused.most_common(12))
        return (
            f"schemas {self.schemas}: supported {self.supported}, refused {self.refused.total()}\n"
            f"walks {self.walks}: validated {self.validated}, unfinished {self.unfinished}, "
            f"not judged {self.unjudged}, "
            f"failed {self.walks - self.validated - self.unfinished - self.unjudged}\n"
            f"instances: {self.invalid_instances} invalid, of which accepted "
            f"{sum(text.startswith('accepted') for text in self.failures)}; {self.valid_instances} valid, of which "
            f"accepted {self.valid_accepted}\nmost refused for:{reasons}"
        )


class Checker:
    def __init__(self, vocabulary: Vocabulary, walks: int) -> None:
        self.result = Result()
        self._vocabulary = vocabulary
        self._ends = set(vocabulary.end_ids)
        self._walks = walks
        self._masks = TokenMasks()
        self._grammars = Grammars(lambda: vocabulary, len(vocabulary.token_bytes))

    def close(self) -> None:
        self._grammars.close()

    def check(self, name: str, group: dict[str, Any], judge_of: Callable[[Any], Validator]) -> None:
        schema = group["schema"]
        self.result.schemas += 1
        spec = GrammarSpec(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(schema))
        try:
            first = asyncio.run(self._grammars.constraint(spec))
        except RequestError as error:
            self.result.refused[error.message.split(": ", 1)[-1][:60]] += 1
            return
        judge = judge_of(schema)
        draw = random.Random(name)
        for _ in range(self._walks):
            self._walk(name, asyncio.run(self._grammars.constraint(spec)), judge, draw)
        for case in group["tests"]:
            self._try(name, first, case)

    def _walk(self, name: str, constraint: Constraint, judge: Validator, draw: random.Random) -> None:
        self.result.walks += 1
        output: list[int] = []
        while len(output) < MOST_TOKENS:
            constraint.follow(output)
            allowed = self._allowed(constraint)
            if constraint.failure is not None or not allowed:
                self.result.failures.append(f"stuck {name}: {constraint.failure}")
                return
            token = self._choose(allowed, draw, ending=len(output) >= FREE_TOKENS)
            if token in self._ends:
                self._judge(name, self._text(output), judge)
                return
            output.append(token)
        self.result.unfinished += 1

    def _choose(self, allowed: list[int], draw: random.Random, *, ending: bool) -> int:
        ends = [token for token in allowed if token in self._ends]
        if ends and (ending or draw.random() < 0.2):
            return ends[0]
        closing = [token for token in allowed if self._vocabulary.token_bytes[token] in (b'"', b"}", b"]")]
        return draw.choice(closing if ending and closing else allowed)

    def _judge(self, name: str, text: bytes, judge: Validator) -> None:
        try:
            value = json.loads(text)
            valid = judge.is_valid(value)
        except (re.error, Unresolvable):
            self.result.unjudged += 1
            return
        except ValueError:
            valid = False
        self.result.validated += valid
        if not valid:
            self.result.failures.append(f"invalid {name}: {text[:200]!r}")

    def _try(self, name: str, constraint: Constraint, case: dict[str, Any]) -> None:
        text = json.dumps(case["data"], ensure_ascii=False)
        constraint.follow([])
        constraint.follow(self._vocabulary.spell(text))
        matcher = constraint.matcher
        accepted = matcher is not None and matcher.is_accepting()
        if case["valid"]:
            self.result.valid_instances += 1
            self.result.valid_accepted += accepted
            return
        self.result.invalid_instances += 1
        if accepted:
            self.result.failures.append(f"accepted {name}, {case['description']}: {text}")

    def _allowed(self, constraint: Constraint) -> list[int]:
        bits = np.unpackbits(self._masks.of([constraint]).view(np.uint8), bitorder="little")
        return np.flatnonzero(bits[: len(self._vocabulary.token_bytes)]).tolist()

    def _text(self, output: list[int]) -> bytes:
        return b"".join(self._vocabulary.token_bytes[token] for token in output)


def groups(directory: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every group of every file below, named by file and description."""
    for path in sorted(directory.rglob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(directory)}: {group['description']}", group


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("directory", type=Path, help="such as JSON-Schema-Test-Suite/tests/draft2020-12")
    parser.add_argument("--walks", type=int, default=5, help="over each schema (default: 5)")
    parser.add_argument("--checkpoint", type=Path, default=DEMO, help="whose tokens are used (default: the demo's)")
    parser.add_argument("--verbose", action="store_true", help="also print what failed")
    args = parser.parse_args(arguments)
    draft = jsonschema.Draft7Validator if "draft7" in str(args.directory) else jsonschema.Draft202012Validator
    checker = Checker(vocabulary_of(load_tokenizer(args.checkpoint)), args.walks)
    for name, group in groups(args.directory):
        if isinstance(group["schema"], dict):
            group["schema"].setdefault("$schema", draft.META_SCHEMA["$schema"])
        checker.check(name, group, draft)
    checker.close()
    print(checker.result)
    if args.verbose:
        print(*checker.result.failures, sep="\n")
    return 1 if checker.result.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
