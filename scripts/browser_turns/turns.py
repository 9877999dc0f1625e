"""What is asked on the page, and what has to be seen there."""

from collections.abc import Callable
from dataclasses import dataclass

from playwright.sync_api import Page, expect

FILES = {
    "handbook.pdf": """
        <h1>Handbook of Brelo Labs</h1><p>Brelo Labs was founded by Nora Stel. Brelo Labs is based in Lisbon.
        Brelo Labs makes wooden clocks.</p>""",
    # More than is told of it, on two pages.
    "report.pdf": """
        <h1>The Tolma Museum</h1><p>This report is for the members of the museum. It was written in the spring, and the
        council has read it twice. The Tolma Museum was founded in 1911. For many years it had only two rooms above a
        bakery. The roof was leaking in those days, and the first visitors brought their own lamps. Today the Tolma
        Museum has a staff of 64 people. Most of them are guides, and some of them are carpenters.</p>
        <p>The collection grew slowly. It has boats, bells and a whale that children like to draw. A new hall is planned
        for next year, and the harbour office has promised a crane. The Tolma Museum is led by Irena Kolb. She was a
        sailor before, and still knows all the knots.</p>
        <p style="break-before: page">Tickets cost 7 euros. Members pay nothing, and schools pay half. The Tolma Museum
        is closed on Monday. On other days it opens at ten, and the cafe an hour later. A boat from the old pier takes
        visitors across the bay in summer. The council thanks all who gave their time, their money or their
        cake.</p>""",
}


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
    file: str | None = None  # one of FILES


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


def _found_within(page: Page, shown: Shown) -> None:
    _must("file search" in shown.calls, "the files were not searched")
    _must("Irena Kolb" in shown.text, "the answer is not the file's")
    _must(page.locator(".citation").count() > 0, "the answer cites nothing")


def _unsaid(page: Page, shown: Shown) -> None:
    _must("file search" in shown.calls, "the files were not searched")
    _must("not in the files" in shown.text, "the answer tells what the file does not")


def _stopped(page: Page, shown: Shown) -> None:
    _must("jobs__get_report" in shown.calls, "the report was not asked for")
    _must("same call" in shown.ending, "the turn did not end by its repeated call")


TURNS = (
    BrowserTurn("a sum by the calculator", "Calculator", "What is 48213 * 9172?", _calculated),
    BrowserTurn("a program in the sandbox", "Code", "Run: print(sum([4, 8, 15, 16, 23, 42]))", _ran),
    BrowserTurn("an answer from a PDF", None, "Who founded Brelo Labs?", _cited, file="handbook.pdf"),
    BrowserTurn("what the PDF leaves open", None, "How many people work at Brelo Labs?", _unsaid, file="handbook.pdf"),
    BrowserTurn("an answer from a longer PDF", None, "Who leads the Tolma Museum?", _found_within, file="report.pdf"),
    BrowserTurn("a tool that is never ready", "jobs", "Get the report of 4711", _stopped),
)
