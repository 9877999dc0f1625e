"""The tools that a turn may call here, by name; and the one way by which they are run."""

import asyncio
import json
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import jsonschema
import referencing
import referencing.exceptions
from jsonschema.exceptions import best_match

from serving.errors import ConfigError, WeftError
from serving.events.event_log import EventLog
from serving.events.event_types import ToolCalled, ToolEnded
from serving.generation.encodable_text import encodable
from serving.observability.logs import log_failure

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolScope:
    """For whom a tool runs."""

    tenant: str
    user: str  # of the tenant's; empty where the request names none
    request_id: str
    deadline: float  # of the monotonic clock, in seconds: what runs longer is cancelled
    settings: Mapping[str, Any] = field(default_factory=dict)  # what the request says to this tool
    files: Mapping[str, bytes] = field(default_factory=dict)  # of the turn: given with it, and made by earlier calls


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    text: str  # what the model reads
    facts: dict[str, Any] = field(default_factory=dict)  # for the client, as JSON; the model does not see them
    is_error: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict)  # that the call made
    harmless: bool = False  # numbers and dates reckoned here: nothing in it could be read as an instruction


class Tool(Protocol):
    @property
    def name(self) -> str:
        """Of the form [a-zA-Z0-9_.-]{1,128}."""
        ...

    @property
    def description(self) -> str: ...

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of the arguments, an object."""
        ...

    @property
    def idempotent(self) -> bool:
        """True where a second run does no harm, so that it may be run again after a crash."""
        ...

    def run(self, arguments: dict[str, Any], scope: ToolScope) -> Awaitable[ToolResult]:
        """`arguments` follow the schema. What the model can learn from is a result with `is_error`; a WeftError is
        told to it too. Cancelled where the turn ends or its time is over."""
        ...


Outcome = Literal["ok", "error", "timeout", "cancelled"]
Watch = Callable[[str, str, float], None]  # is told a tool's name, how its call ended, and the seconds that it took


def _unwatched(tool: str, outcome: str, seconds: float) -> None:
    """Nobody counts."""


@dataclass(frozen=True, slots=True)
class _Registered:
    tool: Tool
    group: str
    seconds: float
    validator: jsonschema.Draft202012Validator


class ToolRegistry:
    """Groups are what a request can ask for as one, such as "web_search" or "mcp:time"."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, _Registered] = {}
        self.watch: Watch = _unwatched
        self.events = EventLog()
        for tool in tools:
            self.add(tool)

    def add(self, tool: Tool, *, group: str | None = None, seconds: float = 30.0) -> None:
        """`group` None: one of its own name. `seconds`: the longest a call may take. Raises ConfigError for a name
        that is taken or is none, and for a schema that is none."""
        if not _NAME.fullmatch(tool.name):
            raise ConfigError(f"a tool's name must be of letters, digits, _, - and dots, not {tool.name[:150]!r}")
        if tool.name in self._tools:
            raise ConfigError(f"there are two tools of the name {tool.name}", param=tool.name)
        try:
            jsonschema.Draft202012Validator.check_schema(tool.parameters)
        except jsonschema.SchemaError as error:
            raise ConfigError(f"the parameters of the tool {tool.name} are no JSON schema: {error.message}") from error
        # An empty registry of its own: a reference out of the schema is not fetched.
        validator = jsonschema.Draft202012Validator(tool.parameters, registry=referencing.Registry())
        self._tools[tool.name] = _Registered(tool, group or tool.name, seconds, validator)

    def remove_group(self, group: str) -> None:
        self._tools = {name: entry for name, entry in self._tools.items() if entry.group != group}

    def get(self, name: str) -> Tool | None:
        entry = self._tools.get(name)
        return None if entry is None else entry.tool

    def group(self, group: str) -> tuple[str, ...]:
        """The names of its tools; none where there is no such group, or its server has not been reached yet."""
        return tuple(name for name, entry in self._tools.items() if entry.group == group)

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(entry.group for entry in self._tools.values()))

    def offered(self, names: Iterable[str], notes: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """Those of `names` that there are, as a chat template reads them; `notes` go behind their descriptions."""
        tools = [entry.tool for name in names if (entry := self._tools.get(name)) is not None]
        return [_shown(tool, (notes or {}).get(tool.name)) for tool in tools]

    async def run(self, name: str, arguments: str, scope: ToolScope) -> ToolResult:
        """The result of a call as the model wrote it; whatever goes wrong is a result that says so. Cancels the tool
        where its time is over, and where it is cancelled itself."""
        entry = self._tools.get(name)
        if entry is None:
            return failed(f"there is no tool {name[:100]!r}")
        parsed = _parsed(entry.validator, arguments)
        if isinstance(parsed, ToolResult):
            return parsed
        begin = time.monotonic()
        self._record_call(name, arguments, scope)
        outcome: Outcome = "cancelled"
        result: ToolResult | None = None
        try:
            outcome, result = await self._run(entry, parsed, scope)
            return result
        finally:
            seconds = time.monotonic() - begin
            self._record_end(name, outcome, seconds, result, scope)
            if result is not None:
                self.watch(name, outcome, seconds)

    async def _run(self, entry: _Registered, parsed: dict[str, Any], scope: ToolScope) -> tuple[Outcome, ToolResult]:
        name, begin = entry.tool.name, time.monotonic()
        deadline = min(scope.deadline, begin + entry.seconds)
        timer = asyncio.timeout(max(0.0, deadline - begin))
        try:
            async with timer:
                result = _encodable(await entry.tool.run(parsed, replace(scope, deadline=deadline)))
        except TimeoutError as error:
            if timer.expired():
                result = failed(f"{name} was stopped: it took longer than the {deadline - begin:.3g} s that it had")
            else:
                result = self._broken(name, error)
        except WeftError as error:
            result = failed(error.message)
        except Exception as error:  # of code that others wrote; the turn goes on without its result
            result = self._broken(name, error)
        return "timeout" if timer.expired() else "error" if result.is_error else "ok", result

    def _record_call(self, name: str, arguments: str, scope: ToolScope) -> None:
        log = self.events
        if log.records(ToolCalled.group, scope.request_id):
            told = log.text_of(arguments)
            user = log.name_of(scope.tenant, scope.user) if scope.user else None
            log.add(ToolCalled(tenant=scope.tenant, user=user, tool=name, arguments=told), scope.request_id)

    def _record_end(
        self, name: str, outcome: Outcome, seconds: float, result: ToolResult | None, scope: ToolScope
    ) -> None:
        log = self.events
        if not log.records(ToolEnded.group, scope.request_id):
            return
        ended = ToolEnded(
            tenant=scope.tenant,
            user=log.name_of(scope.tenant, scope.user) if scope.user else None,
            tool=name,
            outcome=outcome,
            seconds=seconds,
            result=None if result is None else log.text_of(result.text),
        )
        log.add(ended, scope.request_id)

    def _broken(self, name: str, error: Exception) -> ToolResult:
        log_failure(_log, "a tool failed", error, tool=name)
        return failed(f"{name} failed; its error is in the server's log")


def _shown(tool: Tool, note: str | None) -> dict[str, Any]:
    description = tool.description if note is None else f"{tool.description} {note}"
    function = {"name": tool.name, "description": description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _encodable(result: ToolResult) -> ToolResult:
    """What a tool read somewhere may have lone surrogates, which no answer could be written with."""
    return replace(result, text=encodable(result.text), facts=_encodable_value(dict(result.facts)))


def _encodable_value(value: Any) -> Any:
    match value:
        case str():
            return encodable(value)
        case dict():
            return {key: _encodable_value(item) for key, item in value.items()}
        case list() | tuple():
            return type(value)(_encodable_value(item) for item in value)
        case _:
            return value


def failed(text: str) -> ToolResult:
    return ToolResult(text=f"Error: {text}", is_error=True)


def _finite(number: str) -> float:
    if not math.isfinite(value := float(number)):
        raise ValueError(f"{number[:20]} is no number of JSON, or none that can be told from infinity")
    return value


def _parsed(validator: jsonschema.Draft202012Validator, arguments: str) -> dict[str, Any] | ToolResult:
    """The arguments, or the result that says what is wrong with them."""
    try:
        parsed = json.loads(arguments or "{}", parse_float=_finite, parse_constant=_finite)
        if not isinstance(parsed, dict):
            return failed("the arguments must be a JSON object")
        fault = best_match(validator.iter_errors(parsed))
    except (ValueError, RecursionError):
        return failed("the arguments are not valid JSON")
    except referencing.exceptions.Unresolvable as error:
        return failed(f"the tool's schema refers to {error.ref!r}, which is not in it")
    except Exception as error:  # of the library, on a schema that others wrote: such as a number too large to divide
        log_failure(_log, "a call's arguments could not be checked", error)
        return failed("the arguments cannot be checked against the tool's schema")
    if fault is None:
        return parsed
    where = fault.json_path.removeprefix("$").removeprefix(".")
    return failed(f"{where or 'the arguments'}: {fault.message[:500]}")
