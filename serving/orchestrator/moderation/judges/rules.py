"""Patterns and lists of words, found in time linear in the text whatever the pattern (RE2)."""

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import re2

from serving.errors import ConfigError
from serving.orchestrator.moderation.judges.judge import Finding, Passage
from serving.orchestrator.moderation.judges.plain_text import PlainText
from serving.settings.moderation import CATEGORIES

BUILT_IN = Path(__file__).parents[1] / "tables" / "rules.toml"
MOST_RULES = 10_000
MOST_PATTERN_CHARS = 2_000
_PATTERN_MEMORY = 8 << 20  # bytes of one compiled pattern
_NO_LETTER = r"[^\pL\pM\pN]"
_KEYS = {"category", "score", "patterns", "words"}


@dataclass(frozen=True, slots=True)
class _Rule:
    category: str
    score: float
    pattern: Any
    group: int  # of the match, whose start is the finding's


class RulesJudge:
    immediate = True

    def __init__(self, files: Iterable[Path]) -> None:
        """Raises ConfigError for a file that is not a list of rules."""
        self._rules = sorted((rule for file in files for rule in _read(file)), key=lambda rule: -rule.score)

    @property
    def categories(self) -> frozenset[str]:
        return frozenset(rule.category for rule in self._rules)

    async def judge(self, passage: Passage) -> Sequence[Finding]:
        plain = PlainText.of(passage.text)
        found: dict[str, Finding] = {}
        for rule in self._rules:  # the highest scores first
            before = found.get(rule.category)
            if before is not None and before.score > rule.score:
                continue
            match = rule.pattern.search(plain.text)
            if match is None:
                continue
            start = plain.place(match.start(rule.group))
            if before is None or (before.start is not None and start < before.start):
                found[rule.category] = Finding(rule.category, rule.score, start)
        return list(found.values())

    async def close(self) -> None:
        pass


def _read(path: Path) -> list[_Rule]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file that can be read: {error}", param="path") from error
    rules = tables.pop("rules", [])
    if tables or not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise ConfigError(f"{path}: must hold [[rules]] and nothing else", param="path")
    if len(rules) > MOST_RULES:
        raise ConfigError(f"{path}: holds {len(rules)} rules; {MOST_RULES} are the most", param="path")
    return [made for at, rule in enumerate(rules) for made in _compiled(f"{path}: rules[{at}]", rule)]


def _compiled(where: str, rule: dict[str, Any]) -> list[_Rule]:
    if unknown := set(rule) - _KEYS:
        raise ConfigError(f"{where}: unknown key {min(unknown)}; known: {', '.join(sorted(_KEYS))}", param=min(unknown))
    category, score = rule.get("category"), rule.get("score", 1.0)
    if category not in CATEGORIES:
        raise ConfigError(
            f"{where}.category must be one of {', '.join(CATEGORIES)}, not {category!r}", param="category"
        )
    if not isinstance(score, int | float) or not 0 < score <= 1:
        raise ConfigError(f"{where}.score must be a number above 0 and at most 1, not {score!r}", param="score")
    patterns, words = _strings(where, rule, "patterns"), _strings(where, rule, "words")
    if not patterns and not words:
        raise ConfigError(f"{where} must have patterns or words", param="patterns")
    rules = [_Rule(category, float(score), _pattern(where, text), 0) for text in patterns]
    if words:
        # RE2's own word boundary knows ASCII alone.
        text = rf"(?:^|{_NO_LETTER})({'|'.join(_of_words(phrase) for phrase in words)})(?:{_NO_LETTER}|$)"
        rules.append(_Rule(category, float(score), _pattern(where, text), 1))
    return rules


def _strings(where: str, rule: dict[str, Any], key: str) -> list[str]:
    value = rule.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise ConfigError(f"{where}.{key} must be a list of strings that are not empty", param=key)
    if any(len(item) > MOST_PATTERN_CHARS for item in value):
        raise ConfigError(f"{where}.{key} may be of {MOST_PATTERN_CHARS} characters at most", param=key)
    return value


def _of_words(phrase: str) -> str:
    """Words in this order, with any run of spaces and marks between them."""
    return rf"(?:{_NO_LETTER})+".join(re2.escape(word) for word in phrase.split())


def _pattern(where: str, text: str) -> Any:
    options = re2.Options()
    options.case_sensitive = False
    options.max_mem = _PATTERN_MEMORY
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        reason = error.args[0] if error.args else "it cannot be read"
        reason = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        raise ConfigError(
            f"{where}: the pattern {text[:100]!r} is not one of RE2: {reason}", param="patterns"
        ) from error
