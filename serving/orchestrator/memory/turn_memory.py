"""The memory as a turn uses it: recalled before the model is asked, told of the answer afterwards."""

from collections.abc import Sequence
from typing import Any

from serving.orchestrator.memory.entries import Exchange, Person
from serving.orchestrator.memory.memories import Memories
from serving.orchestrator.memory.strategies import Ask, Recalled
from serving.orchestrator.turn_request import TurnRequest
from serving.orchestrator.turns import Message, conversation_of


class TurnMemory:
    """For one request; `ask` is the model in the batch class, for summaries."""

    def __init__(self, memories: Memories, ask: Ask) -> None:
        self._memories = memories
        self._ask = ask
        self._life: int | None = None

    async def begin(self, turn: TurnRequest) -> bool:
        """Whether the user's memory is on. What is erased from here on is not remembered at the end."""
        person = Person(turn.tenant, turn.user)
        is_on = await self._memories.is_on(person)
        if is_on and turn.is_kept:
            self._life = await self._memories.life(person)
        return is_on

    async def recall(self, turn: TurnRequest, kept: Sequence[Message]) -> Recalled:
        """`kept` are the messages that the prompt has without a memory."""
        conversation = conversation_of(kept)
        visible = {_exchange(turn.messages).digest for turn in conversation.history}
        question = _exchange(conversation.newest.messages).question
        return await self._memories.recall(Person(turn.tenant, turn.user), question, visible)

    async def remember(self, turn: TurnRequest, answer: str) -> None:
        """What the user said and was answered; tools' calls and results between them are not kept."""
        question = _exchange(conversation_of(turn.messages).newest.messages).question
        if question and answer:
            person = Person(turn.tenant, turn.user)
            await self._memories.remember(person, Exchange(question, answer), self._ask, self._life)


def _exchange(messages: Sequence[Message]) -> Exchange:
    """Of the messages of one turn: what the user said, and the last that the model did."""
    said = [_text(message.get("content")) for message in messages if message["role"] == "user"]
    answers = [_text(message.get("content")) for message in messages if message["role"] == "assistant"]
    return Exchange("\n".join(said), answers[-1] if answers else "")


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part if isinstance(part, str) else part.get("text", "") for part in content)
    return content or ""
