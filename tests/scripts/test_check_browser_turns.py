"""What is asked of the demo model on the page is judged by what a reader sees, of the deployment that ships."""

from pathlib import Path

import pytest
from playwright.sync_api import Page

from scripts.browser_turns.turns import TURNS, BrowserTurn, Shown, UnexpectedPageError
from scripts.check_browser_turns import deployment_text
from serving.config import load_deployment

NO_PAGE: Page = object()  # pyright: ignore[reportAssignmentType]  # these turns are judged by what was read from it
RIGHT = {
    "a sum by the calculator": Shown("calculator 48213 * 9172 442209636", "The result is 442209636.", ""),
    "a program in the sandbox": Shown("code print(sum([4, 8])) 108", "The program printed 108.", ""),
    "what the PDF leaves open": Shown(
        "file search How many people", "The staff of Brelo Labs is not in the files.", ""
    ),
    "a tool that is never ready": Shown(
        "jobs__get_report", "", "the model made the same call of jobs__get_report again: 3 in one turn"
    ),
}
JUDGED = [turn for turn in TURNS if turn.name in RIGHT]


def test_the_deployment_that_is_checked_is_the_one_that_ships_with_a_tool_more(tmp_path: Path) -> None:
    file = tmp_path / "demo-chat.toml"
    file.write_text(deployment_text(tmp_path, tmp_path / "weights"), encoding="utf-8")
    deployment = load_deployment(file)
    assert deployment.model.checkpoint == tmp_path / "weights"
    assert deployment.retrieval is not None
    assert deployment.retrieval.folder == tmp_path / "stores"
    assert deployment.tools.code_interpreter is not None
    assert list(deployment.tools.mcp) == ["jobs"]
    assert deployment.embeddings is not None
    assert deployment.embeddings.checkpoint.is_absolute()


@pytest.mark.parametrize("turn", JUDGED, ids=lambda turn: turn.name)
def test_a_right_page_passes_and_one_without_the_call_or_the_answer_does_not(turn: BrowserTurn) -> None:
    right = RIGHT[turn.name]
    turn.check(NO_PAGE, right)
    for wrong in (Shown("", right.text, right.ending), Shown(right.calls, "", "")):
        with pytest.raises(UnexpectedPageError):
            turn.check(NO_PAGE, wrong)


def test_every_turn_but_the_citing_ones_is_judged_here() -> None:
    assert [turn.name for turn in TURNS if turn not in JUDGED] == [
        "an answer from a PDF",
        "an answer from a longer PDF",
    ]
