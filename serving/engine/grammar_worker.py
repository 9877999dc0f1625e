"""The process in which a grammar is compiled first: requests on stdin, answers on stdout, each a length and JSON.

Grammars come from clients. llguidance has limits of its own, but they count neither seconds nor bytes, and recursion
that is too deep ends the process. What this process survived the engine may compile too: it has less time, memory and
stack than the engine has.

It is started as a bare script (see `grammars.py`) and imports nothing of weft.
"""

import json
import resource
import sys
from typing import Any, BinaryIO

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark

# Between two parts of a JSON text: nothing, a space, or a line break and an indent. Models that may write any white
# space sometimes write nothing else.
JSON_SPACE = r" |\r?\n( {0,24}|\t{0,8})"
STACK_BYTES = 1 << 20  # less than any thread that will compute masks has
OUT_OF_MEMORY = 12  # what it exits with, where Python found the limit; where llguidance did, it aborts


class Tokens:
    """What llguidance wants of a tokenizer."""

    def __init__(self, message: dict[str, Any]) -> None:
        self.tokens = [bytes.fromhex(token) for token in message["tokens"]]
        self.special_token_ids = message["special"]
        self.eos_token_id = message["ends"][0]
        self.bos_token_id = None
        special = set(self.special_token_ids)
        self._ids = {token: i for i, token in enumerate(self.tokens) if token and i not in special}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: str | bytes) -> list[int]:
        """Not as the model's tokenizer would, which is not here: that decides nothing about cost."""
        rest, ids = text if isinstance(text, bytes) else text.encode(), []
        while rest:
            sizes = range(min(self._longest, len(rest)), 0, -1)
            size = next(size for size in sizes if rest[:size] in self._ids)
            ids.append(self._ids[rest[:size]])
            rest = rest[size:]
        return ids


def tokenizer_of(message: dict[str, Any]) -> LLTokenizer:
    wrapper = TokenizerWrapper(Tokens(message))
    return LLTokenizer(wrapper, n_vocab=len(message["tokens"]), eos_token=message["ends"])


def answer(request: dict[str, Any], tokenizer: LLTokenizer, memory: int) -> dict[str, Any]:
    """{"grammar", "bytes"}: what to give to llguidance, and the memory that it took; or {"refused"}: why not."""
    allow_cpu_seconds(request["seconds"])
    allow_memory(memory)
    before = resident_bytes()
    try:
        grammar = grammar_of(request["kind"], request["text"])
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(**request["limits"]))
        if not matcher.is_error():
            matcher.compute_bitmask()
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        return {"refused": f"{error}"}
    if matcher.is_error():
        return {"refused": matcher.get_error()}
    return {"grammar": grammar, "bytes": max(0, resident_bytes() - before)}


def grammar_of(kind: str, text: str) -> str:
    """llguidance's form of a grammar. Raises ValueError."""
    if kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(
            text, defaults={"whitespace_pattern": JSON_SPACE}, overrides={"lenient": False}
        )
    if kind == "regex":
        return LLMatcher.grammar_from_regex(text)
    if kind == "choice":
        if not (choices := json.loads(text)):
            raise ValueError("there must be at least one")
        return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(choice) for choice in choices))
    return LLMatcher.grammar_from_lark(_lark_of(text) if kind == "ebnf" else text)


def _lark_of(text: str) -> str:
    try:
        return any_to_lark(text)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # llguidance has no narrower one for a rule that is not there
        raise ValueError(f"{error}") from error


def resident_bytes() -> int:
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def allow_cpu_seconds(seconds: float) -> None:
    """The kernel ends this process by SIGXCPU when it has used so many more (rounded up to a whole number, plus one).
    Raises SystemExit where a hard limit that somebody else has set comes first: there it would be SIGKILL, which says
    nothing about a grammar, and the next process has its seconds before it."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    soft, hard = int(usage.ru_utime + usage.ru_stime + seconds) + 1, resource.getrlimit(resource.RLIMIT_CPU)[1]
    if hard != resource.RLIM_INFINITY and soft >= hard:
        sys.exit(f"the hard limit of {hard} s of CPU time leaves less than {seconds:g} s for a grammar")
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def allow_memory(more: int) -> None:
    """So many bytes beyond what is there now."""
    if sys.platform != "linux":  # macOS has the limit but does not hold to it
        return
    with open("/proc/self/statm", encoding="ascii") as file:
        most = int(file.read().split()[0]) * resource.getpagesize() + more
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def read_message(stream: BinaryIO) -> dict[str, Any] | None:
    """None at the end of the stream."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    return json.loads(stream.read(int.from_bytes(head, "big")))


def write_message(stream: BinaryIO, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    stream.write(len(data).to_bytes(4, "big") + data)
    stream.flush()


def serve(requests: BinaryIO, answers: BinaryIO, memory: int) -> None:
    """The first request is the vocabulary."""
    first = read_message(requests)
    if first is None:
        return
    tokenizer = tokenizer_of(first)
    write_message(answers, {})
    while (request := read_message(requests)) is not None:
        write_message(answers, answer(request, tokenizer, memory))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        serve(sys.stdin.buffer, sys.stdout.buffer, int(sys.argv[1]))
    except MemoryError:
        sys.exit(OUT_OF_MEMORY)
