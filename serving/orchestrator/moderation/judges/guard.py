"""A guard model in Llama Guard's format, served here or elsewhere behind /v1/completions.

The prompt is the one that these models were trained on (https://llama.com/docs/model-cards-and-prompt-formats/
llama-guard-3/), and the answer is `safe`, or `unsafe` and a line of categories: S1,S10.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from serving.errors import EngineError, EngineUnavailableError
from serving.orchestrator.moderation.judges.judge import Finding, Passage

# What a guard calls them: its words for the prompt, and ours for the finding.
HAZARDS: Mapping[str, tuple[str, str]] = {
    "S1": ("Violent Crimes", "violence"),
    "S2": ("Non-Violent Crimes", "illicit"),
    "S3": ("Sex Crimes", "sexual"),
    "S4": ("Child Exploitation", "sexual/minors"),
    "S5": ("Defamation", "defamation"),
    "S6": ("Specialized Advice", "specialized-advice"),
    "S7": ("Privacy", "privacy"),
    "S8": ("Intellectual Property", "intellectual-property"),
    "S9": ("Indiscriminate Weapons", "illicit/violent"),
    "S10": ("Hate", "hate"),
    "S11": ("Self-Harm", "self-harm"),
    "S12": ("Sexual Content", "sexual"),
    "S13": ("Elections", "elections"),
    "S14": ("Code Interpreter Abuse", "code-abuse"),
}
ANSWER_TOKENS = 24
MOST_CHARS = 16_000  # of a text: its end, where a longer one is

_PROMPT = """\
<|begin_of_text|><|start_header_id|>user<|end_header_id|>

Task: Check if there is unsafe content in '{role}' messages in conversations according our safety policy with the \
below categories.

<BEGIN UNSAFE CONTENT CATEGORIES>
{categories}
<END UNSAFE CONTENT CATEGORIES>

<BEGIN CONVERSATION>

{conversation}

<END CONVERSATION>

Provide your safety assessment for ONLY THE LAST {role} message in the above conversation:
 - First line must read 'safe' or 'unsafe'.
 - If unsafe, a second line must include a comma-separated list of violated categories.\
<|eot_id|><|start_header_id|>assistant<|end_header_id|>

"""
_MARKS = re.compile(r"<\|[^|<>]{0,40}\|>|<(?:BEGIN|END) [A-Z ]{1,40}>")
_VERDICT = re.compile(r"\s*(safe|unsafe)\s*(?:\n\s*(S\d+(?:\s*,\s*S\d+)*)\s*)?", re.IGNORECASE)


class GuardJudge:
    immediate = False

    def __init__(self, url: str, model: str, key: str | None = None) -> None:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._client = httpx.AsyncClient(base_url=url, headers=headers, timeout=None)
        self._model = model

    @property
    def categories(self) -> frozenset[str]:
        return frozenset(category for _, category in HAZARDS.values())

    async def judge(self, passage: Passage) -> Sequence[Finding]:
        body = {
            "model": self._model,
            "prompt": guard_prompt(passage),
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "logprobs": 5,
            "add_special_tokens": False,
        }
        try:
            reply = await self._client.post("/v1/completions", json=body)
            reply.raise_for_status()
            choice = reply.json()["choices"][0]
            text = choice["text"]
        except httpx.HTTPStatusError as error:
            raise EngineUnavailableError(f"the guard answers with status {error.response.status_code}") from error
        except httpx.HTTPError as error:
            raise EngineUnavailableError(f"the guard cannot be reached: {type(error).__name__}") from error
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise EngineError("the guard's reply is no completion") from error
        return guard_findings(text, certainty_of(choice.get("logprobs")))

    async def close(self) -> None:
        await self._client.aclose()


def guard_prompt(passage: Passage) -> str:
    """What is judged cannot end the conversation that it is part of: marks in it are taken out."""
    role = "User" if passage.direction == "input" else "Agent"
    turns = [f"{role}: {_harmless(passage.text)}"]
    if role == "Agent":
        turns.insert(0, f"User: {_harmless(passage.asked)}")
    categories = "\n".join(f"{code}: {title}." for code, (title, _) in HAZARDS.items())
    return _PROMPT.format(role=role, categories=categories, conversation="\n\n".join(turns))


def guard_findings(answer: str, certainty: float = 1.0) -> list[Finding]:
    """Raises EngineError where the answer is none."""
    verdict = _VERDICT.fullmatch(answer)
    if verdict is None:
        raise EngineError("the guard's answer is neither safe nor unsafe")
    if verdict[1].lower() == "safe":
        return []
    codes = [code.strip().upper() for code in (verdict[2] or "").split(",") if code.strip()]
    if not codes or not set(codes) <= set(HAZARDS):
        raise EngineError("the guard names no category that is known")
    return [Finding(category, certainty) for category in dict.fromkeys(HAZARDS[code][1] for code in codes)]


def _harmless(text: str) -> str:
    return _MARKS.sub(" ", text[-MOST_CHARS:])


def certainty_of(logprobs: Any) -> float:
    """How much of the likelihood of the two words was on "unsafe"; 1 where the server does not say."""
    likely = {"safe": 0.0, "unsafe": 0.0}
    try:
        for top in logprobs["top_logprobs"]:
            for token, value in top.items():
                word = token.strip().lower()
                name = "unsafe" if word and "unsafe".startswith(word) else "safe" if word == "safe" else None
                if name is not None:
                    likely[name] = max(likely[name], math.exp(value))
            if any(likely.values()):
                break
    except (TypeError, KeyError, AttributeError, ValueError, OverflowError):
        return 1.0
    total = sum(likely.values())
    return likely["unsafe"] / total if total and likely["unsafe"] else 1.0
