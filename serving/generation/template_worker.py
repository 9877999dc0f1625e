"""The process that renders one chat template: requests on stdin, answers on stdout, each a length and JSON.

It is started as a bare script (see `template_process.py`) and imports nothing of weft.
"""

import json
import resource
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any, BinaryIO

import jinja2
import jinja2.ext
import jinja2.meta
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_SEQUENCE = 1 << 22  # items or characters that one `*` may make
MAX_POWER_BITS = 4096


class RaisedByTemplateError(TemplateError):
    """The template called raise_exception."""


class LimitError(Exception):
    pass


class Environment(ImmutableSandboxedEnvironment):
    """Templates see what transformers gives them. Operators whose result can be huge are checked first; whatever slips
    through meets the limits on output, memory and time."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, jinja2.ext.loopcontrols])
        self.filters["tojson"] = to_json
        self.globals["raise_exception"] = raise_exception
        self.globals["strftime_now"] = strftime_now
        del self.globals["lipsum"]

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        # Jinja2 would print nothing for it, which hides what the template tried.
        raise SecurityError(f"it reaches for {attribute!r} of a {type(obj).__name__}")

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > MAX_POWER_BITS:
                raise LimitError("it computes a power that is too large")
        else:
            for sequence, count in ((left, right), (right, left)):
                sized = isinstance(sequence, str | list | tuple)
                if sized and isinstance(count, int) and len(sequence) * count > MAX_SEQUENCE:
                    raise LimitError(f"it makes a sequence of {len(sequence)} x {count} items")
        return super().call_binop(context, operator, left, right)


class GenerationBlock(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %} marks an assistant's words for training; here it renders its body."""

    tags = {"generation"}  # noqa: RUF012 -- jinja2's own declaration

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> str:
        return caller()


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message: str) -> None:
    raise RaisedByTemplateError(message)


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def render(template: jinja2.Template, variables: Mapping[str, Any], most_chars: int) -> str:
    parts: list[str] = []
    length = 0
    for part in template.generate(**variables):
        length += len(part)
        if length > most_chars:
            raise LimitError(f"its output is longer than {most_chars} characters")
        parts.append(part)
    return "".join(parts)


def answer(request: dict[str, Any], templates: dict[str, jinja2.Template], environment: Environment) -> dict[str, Any]:
    """For a new template {"reads": the variables that it looks at}, for a rendering {"text"}, or where either fails
    {"kind", "message"}: raised (by the template's own call), limit, security, syntax or failed."""
    _allow_cpu_seconds(request["seconds"])
    try:
        if "source" in request:
            templates[request["name"]] = environment.from_string(request["source"])
            return {"reads": sorted(jinja2.meta.find_undeclared_variables(environment.parse(request["source"])))}
        return {"text": render(templates[request["name"]], request["variables"], request["most_chars"])}
    except RaisedByTemplateError as error:
        return {"kind": "raised", "message": str(error)}
    except SecurityError as error:
        return {"kind": "security", "message": str(error)}
    except TemplateSyntaxError as error:
        return {"kind": "syntax", "message": f"{error.message} (line {error.lineno})"}
    except (LimitError, OverflowError, RecursionError, MemoryError) as error:
        return {"kind": "limit", "message": str(error) or type(error).__name__}
    except Exception as error:
        return {"kind": "failed", "message": f"{type(error).__name__}: {error}{_line(error)}"[:1000]}


def _line(error: Exception) -> str:
    """Where in the template it happened: jinja2 rewrites tracebacks to template lines."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f" (line {line})"


def _allow_cpu_seconds(seconds: float) -> None:
    """The kernel ends this process where it computes for longer, whatever the clock says and whoever is there."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(usage.ru_utime + usage.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def read_message(stream: BinaryIO) -> dict[str, Any] | None:
    """None at the end of the stream."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    return json.loads(stream.read(int.from_bytes(head, "big")))


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    environment = Environment()
    templates: dict[str, jinja2.Template] = {}
    while (request := read_message(requests)) is not None:
        data = json.dumps(answer(request, templates, environment)).encode()
        answers.write(len(data).to_bytes(4, "big") + data)
        answers.flush()


if __name__ == "__main__":
    if sys.platform == "linux":  # macOS has the limit but does not hold to it
        resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]), int(sys.argv[1])))
    serve(sys.stdin.buffer, sys.stdout.buffer)
