"""Scores the demo's tools as a running weft serves them when they are `"strict": true`: calls follow their schemas.

    scripts/serve
    python -m scripts.demo.served http://127.0.0.1:8000 [--items 60]

The held-out items and what counts as right are those of `evaluate`, which lets the model write what it likes.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from scripts.demo.chat_format import CALL_CLOSE, CALL_OPEN
from scripts.demo.dialogue import Conversation, Message
from scripts.demo.draw import Draw
from scripts.demo.evaluate import SKILLS, Item, Score, items_of, same
from scripts.flags import flags_of

STRICT_SKILLS = ("tools", "tools, unseen", "tools, remote")
AT_ONCE = 8
ANSWER_SECONDS = 300.0


def request_of(dialogue: Conversation) -> dict[str, Any]:
    """The body of a chat completion, greedy, with the dialogue's tools as strict functions."""
    messages: list[Message] = []
    calls = 0
    for message in dialogue.messages:
        message = dict(message)
        if message.get("tool_calls"):
            calls += 1
            [call] = message["tool_calls"]
            message["tool_calls"] = [call | {"id": f"call_{calls}"}]
        elif message["role"] == "tool":
            message["tool_call_id"] = f"call_{calls}"
        messages.append(message)
    functions = [tool.get("function", tool) for tool in dialogue.tools]
    return {
        "model": "weft-demo",
        "messages": messages,
        "tools": [{"type": "function", "function": function | {"strict": True}} for function in functions],
        "temperature": 0,
    }


def text_of(message: dict[str, Any]) -> str:
    """An assistant's message as the model wrote it, with one call at most."""
    if not message.get("tool_calls"):
        return message["content"] or ""
    function = message["tool_calls"][0]["function"]
    call = {"name": function["name"], "arguments": json.loads(function["arguments"])}
    return f"{CALL_OPEN}{json.dumps(call, ensure_ascii=False)}{CALL_CLOSE}"


def strict_scores(client: httpx.Client, count: int, seed: int) -> dict[str, Score]:
    """Of `count` episodes a skill; the call and the answer must both be right. Raises httpx.HTTPError."""

    def answer(item: Item) -> str:
        reply = client.post("/v1/chat/completions", json=request_of(item.dialogue))
        reply.raise_for_status()
        return text_of(reply.json()["choices"][0]["message"])

    scores: dict[str, Score] = {}
    for name in STRICT_SKILLS:
        draw = Draw(seed, held_out=True)
        groups = [items_of(SKILLS[name](draw)) for _ in range(count)]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            got = threads.map(answer, [item for group in groups for item in group])
            score = scores[f"{name}, strict"] = Score()
            for group in groups:
                answers = [next(got) for _ in group]
                good = all(same(item.expected, text) for item, text in zip(group, answers, strict=True))
                asked = f"{group[-1].dialogue.messages[-1]['content']}"
                score.count(good, asked, " || ".join(item.expected for item in group), " || ".join(answers))
    return scores


def main() -> None:
    parser = flags_of(__doc__)
    parser.add_argument("url")
    parser.add_argument("--items", type=int, default=60, help="episodes a skill (default: %(default)s)")
    args = parser.parse_args()
    with httpx.Client(base_url=args.url, timeout=ANSWER_SECONDS) as client:
        for name, score in strict_scores(client, args.items, seed=99).items():
            print(f"| {name} | {score.share:.2f} | {score.total} |")


if __name__ == "__main__":
    main()
