"""What is asked on the page, and what has to be seen there."""

from collections.abc import Callable
from dataclasses import dataclass

from playwright.sync_api import Page, expect

HANDBOOK = (
    "<h1>Handbook of Brelo Labs</h1><p>Brelo Labs was founded by Nora Stel. Brelo Labs is based in Lisbon. "
    "Brelo Labs makes wooden clocks.</p>"
)
FILE = "handbook.pdf"


class UnexpectedPageError(Exception):
    """The page shows something else than the turn should have given."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a reader of the page sees of the last answer."""

    calls: str
    text: str
    ending: str


@dataclass(frozen=True, slots=True)
class BrowserTurn:
    """`tool`: the button to press, if any. `check` raises UnexpectedPageError, or what a locator raises."""

    name: str
    tool: str | None
    question: str
    check: Callable[[Page, Shown], None]
    files: bool = False


def _must(there: bool, what: str) -> None:
    if not there:
        raise UnexpectedPageError(what)


def _calculated(page: Page, shown: Shown) -> None:
    _must("calculator" in shown.calls, "the calculator was not called")
    _must("442209636" in shown.calls, "the calculator was asked something else")
    _must("442209636" in shown.text, "the answer does not tell the result")


def _ran(page: Page, shown: Shown) -> None:
    _must("print" in shown.calls, "no program was run")
    _must("108" in shown.calls, "the program printed something else")
    _must("108" in shown.text, "the answer does not tell what was printed")


def _cited(page: Page, shown: Shown) -> None:
    _must("file search" in shown.calls, "the files were not searched")
    _must("Nora Stel" in shown.text, "the answer is not the file's")
    _must(page.locator(".citation").count() > 0, "the answer cites nothing")
    page.locator(".citation").first.click()
    expect(page.locator("#passage")).to_contain_text("founded by Nora Stel")
    expect(page.locator("#passage")).to_contain_text("page 1")
    page.get_by_role("button", name="Close the passage").click()


def _unsaid(page: Page, shown: Shown) -> None:
    _must("file search" in shown.calls, "the files were not searched")
    _must("do not say" in shown.text, "the answer tells what the file does not")


def _stopped(page: Page, shown: Shown) -> None:
    _must("jobs__get_report" in shown.calls, "the report was not asked for")
    _must("same call" in shown.ending, "the turn did not end by its repeated call")


TURNS = (
    BrowserTurn("a sum by the calculator", "Calculator", "What is 48213 * 9172?", _calculated),
    BrowserTurn("a program in the sandbox", "Code", "Run: print(sum([4, 8, 15, 16, 23, 42]))", _ran),
    BrowserTurn("an answer from a PDF", None, "Who founded Brelo Labs?", _cited, files=True),
    BrowserTurn("what the PDF leaves open", None, "How many people work at Brelo Labs?", _unsaid, files=True),
    BrowserTurn("a tool that is never ready", "jobs", "Get the report of 4711", _stopped),
)
