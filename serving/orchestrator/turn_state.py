"""How far a turn has come: its messages, what it has used up, and the answer that is being read."""

import time
from collections import Counter as Tally
from collections.abc import Iterator, Sequence

from serving.engine.request import FinishReason
from serving.generation.answers.delta_reader import DeltaReader
from serving.generation.answers.parts import Reasoning, ToolCall
from serving.generation.request import TextDelta, Usage
from serving.orchestrator.memory.strategies import Recalled
from serving.orchestrator.turn_calls import OfferedTools, assistant_message, call_ids, same_call
from serving.orchestrator.turn_events import (
    CallArguments,
    CallBegun,
    CallReady,
    ReasoningOut,
    TextOut,
    TurnEnd,
    TurnEnded,
    TurnEvent,
    TurnUsage,
)
from serving.orchestrator.turn_request import TurnRequest
from serving.orchestrator.turns import Message

_LONGEST = 86_400.0  # seconds that a turn without a budget of time may take


class TurnState:
    def __init__(self, turn: TurnRequest, offered: OfferedTools) -> None:
        self.turn = turn
        self.offered = offered
        self.messages: list[Message] = list(turn.messages)
        self.files = dict(turn.files)
        self.ids = call_ids(turn.request_id)
        self.deadline = time.monotonic() + (_LONGEST if turn.budgets.seconds is None else turn.budgets.seconds)
        self.rounds = 0  # answers that the model has given
        self.tools_run = 0
        self.recalled = Recalled()  # of the user's memory
        self.remembers = False  # the answer goes into it
        self._prompt_tokens = self._cached_tokens = self._completion_tokens = self._reasoning_tokens = 0
        self._calls: Tally[tuple[str, str]] = Tally()

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    @property
    def tokens_left(self) -> int | None:
        """Of the budget; None where there is none."""
        most = self.turn.budgets.completion_tokens
        return None if most is None else max(0, most - self._completion_tokens)

    def add(self, answer: "Answer") -> None:
        self.rounds += 1
        self.messages.append(assistant_message(answer.text, answer.calls, answer.reasoning))
        if answer.usage is not None:
            self._prompt_tokens += answer.usage.prompt_tokens
            self._cached_tokens += answer.usage.cached_tokens
            self._completion_tokens += answer.usage.completion_tokens
            self._reasoning_tokens += answer.reasoning_tokens
        self._calls.update(same_call(call) for call in answer.ours)

    def limit(self, calls: Sequence[ToolCall]) -> TurnEnded | None:
        """Why these calls, the last of the turn, may not run; None where they may."""
        budgets = self.turn.budgets
        again = next((call for call in calls if self._calls[same_call(call)] >= budgets.same_call), None)
        if again is not None:
            return self.ended(
                TurnEnd.REPEATED,
                f"the model made the same call of {again.name} again: {self._calls[same_call(again)]} in one turn",
            )
        if self.rounds >= budgets.rounds:
            return self.ended(TurnEnd.ROUNDS, f"the model still calls tools after {self.rounds} answers")
        if sum(self._calls.values()) > budgets.calls:
            return self.ended(TurnEnd.CALLS, f"the turn would run more than {budgets.calls} calls")
        if self.tokens_left == 0:
            return self.ended(TurnEnd.TOKENS, f"the turn has used its {budgets.completion_tokens} tokens")
        return self.late()

    def late(self) -> TurnEnded | None:
        """Where the turn's time is over, its end."""
        if time.monotonic() < self.deadline:
            return None
        seconds = self.turn.budgets.seconds
        return self.ended(TurnEnd.TIME, f"the turn has used its {_LONGEST if seconds is None else seconds:g} s")

    def ended(self, reason: str, detail: str = "") -> TurnEnded:
        usage = TurnUsage(
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            completion_tokens=self._completion_tokens,
            reasoning_tokens=self._reasoning_tokens,
            model_calls=self.rounds,
            tool_calls=self.tools_run,
        )
        return TurnEnded(reason=str(reason), usage=usage, detail=detail)


class Answer:
    """One answer of the model, read as it comes."""

    def __init__(self, state: TurnState) -> None:
        self._reader = DeltaReader(state.offered.shown, state.ids)
        self._of_client = state.offered.names_of_client
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self.calls: list[ToolCall] = []
        self.finish: FinishReason | None = None
        self.usage: Usage | None = None

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def reasoning(self) -> str:
        return "".join(self._thoughts)

    @property
    def reasoning_tokens(self) -> int:
        return self._reader.reasoning_tokens

    @property
    def ours(self) -> list[ToolCall]:
        """Calls that do not wait for the client: also those of tools that there are not, which get a result too."""
        return [call for call in self.calls if call.name not in self._of_client]

    def see(self, delta: TextDelta) -> Iterator[TurnEvent]:
        self.usage, self.finish = delta.usage, delta.finish_reason
        for part in self._reader.read(delta).parts:
            if isinstance(part, Reasoning):
                self._thoughts.append(part.text)
                yield ReasoningOut(part.text)
            elif isinstance(part, ToolCall):
                self.calls.append(part)
                yield CallBegun(part.id, part.name)
                yield CallArguments(part.id, part.arguments)
                yield CallReady(part, runs_here=part.name not in self._of_client)
            else:
                self._texts.append(part)
                yield TextOut(part)
