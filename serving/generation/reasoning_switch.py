"""How a chat template is told whether to have the model reason, and how much."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from serving.errors import CheckpointError, RequestError, UnsupportedError
from serving.generation.answers.answer_form import AnswerForm
from serving.generation.answers.harmony import HARMONY
from serving.settings.reasoning_switch import EFFORTS, Effort, ReasoningSwitchConfig

_LEVEL = "reasoning_effort"
_FLAGS = ("enable_thinking", "thinking")  # Qwen3's and most others'; DeepSeek's and Granite's
_OFF = ("none", "minimal")
_OF_HARMONY = ("low", "medium", "high")  # what gpt-oss was trained on


@dataclass(frozen=True, slots=True)
class ReasoningSwitch:
    """Of one template."""

    source: str  # says in errors where the template comes from
    values: Mapping[str, Mapping[str, Any]]  # the template's variables by effort; what is not here is refused

    def variables(self, effort: Effort | None, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """`given`, the client's own variables, with those that `effort` means. Raises UnsupportedError for an effort
        that the template has no words for, RequestError where `given` says otherwise."""
        if effort is None:
            return given
        if effort not in self.values:
            raise UnsupportedError(
                f'reasoning_effort "{effort}" is not supported: the chat template of {self.source} {self._right()}',
                param="reasoning_effort",
            )
        meant = self.values[effort]
        for name, value in meant.items():
            if name in given and given[name] != value:
                raise RequestError(
                    f'reasoning_effort "{effort}" means {name} = {value!r} here, and chat_template_kwargs says '
                    f"{given[name]!r}: send one of them",
                    param="reasoning_effort",
                    code="invalid_value",
                )
        return {**given, **meant}

    def _right(self) -> str:
        if self.values:
            return f"takes {' or '.join(self.values)}"
        return "has no switch for its reasoning: leave it out"


def switches_of(
    reads: Mapping[str, Set[str]],
    forms: Mapping[str, AnswerForm],
    source: str,
    config: ReasoningSwitchConfig | None = None,
) -> Mapping[str, ReasoningSwitch]:
    """Of each of a checkpoint's templates, by name: by the variables that it reads, or as the deployment says. Raises
    CheckpointError for a deployment's variable that none of them reads."""
    if config is not None and not any(config.variable in read for read in reads.values()):
        raise CheckpointError(f"model.reasoning_switch: the chat template of {source} does not read {config.variable}")
    return {name: _switch(read, forms[name], source, config) for name, read in reads.items()}


def _switch(reads: Set[str], form: AnswerForm, source: str, config: ReasoningSwitchConfig | None) -> ReasoningSwitch:
    """A template with a level and a flag gets both, and no level where the flag is off."""
    if config is not None and config.variable in reads:
        values = config.values or {effort: effort not in _OFF for effort in EFFORTS}
        return ReasoningSwitch(source, {effort: {config.variable: value} for effort, value in values.items()})
    flags = [name for name in _FLAGS if name in reads]
    if _LEVEL not in reads and not flags:
        return ReasoningSwitch(source, {} if form.reasoning else {"none": {}})
    values = {effort: _meant(effort, flags, has_level=_LEVEL in reads) for effort in EFFORTS}
    if form.reasoning == HARMONY:
        values = {effort: values[effort] for effort in _OF_HARMONY}
    return ReasoningSwitch(source, values)


def _meant(effort: Effort, flags: list[str], *, has_level: bool) -> Mapping[str, Any]:
    is_on = effort not in _OFF
    level = {_LEVEL: effort} if has_level and (is_on or not flags) else {}
    return dict.fromkeys(flags, is_on) | level
