"""Which calls of which client libraries work unchanged:
`python -m scripts.check_clients --url http://127.0.0.1:8000 --model NAME [--key KEY] [--node FOLDER]`.

The server runs already, with a model whose chat template takes tools, with a folder for files, and with the code
interpreter. A library that is not installed is said to be; FOLDER is one whose node_modules has the libraries of Node.
Ends with 1 where a call fails.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from scripts.clients import anthropic_calls, framework_calls, openai_calls
from scripts.clients.call import Call, Target
from scripts.flags import flags_of

CALLS = (*openai_calls.CALLS, *anthropic_calls.CALLS, *framework_calls.CALLS)
NODE_CALLS = Path(__file__).parent / "clients" / "calls.mjs"
NOT_INSTALLED = "not installed"
_SHOWN = 160  # characters of a failure


@dataclass(frozen=True, slots=True)
class Outcome:
    client: str
    name: str
    fault: str = ""  # empty: it works

    @property
    def word(self) -> str:
        return "works" if not self.fault else self.fault if self.fault == NOT_INSTALLED else "FAILS"


def outcomes(calls: Sequence[Call], target: Target) -> Iterator[Outcome]:
    for call in calls:
        try:
            call.run(target)
        except ModuleNotFoundError:
            yield Outcome(call.client, call.name, NOT_INSTALLED)
        except Exception as error:  # whatever a library raises is what is reported
            yield Outcome(call.client, call.name, f"{type(error).__name__}: {error}")
        else:
            yield Outcome(call.client, call.name)


def node_outcomes(target: Target, folder: Path) -> Iterator[Outcome]:
    command = ["node", str(NODE_CALLS), target.url, target.key, target.model]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    for line in run.stdout.splitlines():
        yield Outcome(**json.loads(line))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = flags_of(__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--key", default="unused")
    parser.add_argument("--model", required=True)
    parser.add_argument("--node", type=Path, help="a folder with node_modules")
    given = parser.parse_args(arguments)
    target = Target(given.url.rstrip("/"), given.key, given.model)
    found = list(outcomes(CALLS, target))
    if given.node is not None:
        found += node_outcomes(target, given.node)
    table = Table("client", "call", "", "")
    for outcome in found:
        fault = "" if outcome.fault == NOT_INSTALLED else outcome.fault[:_SHOWN]
        table.add_row(outcome.client, outcome.name, outcome.word, fault)
    Console().print(table)
    return int(any(outcome.word == "FAILS" for outcome in found))


if __name__ == "__main__":
    sys.exit(main())
