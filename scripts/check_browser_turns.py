"""Whether the demo model answers well on the chat page: `python -m scripts.check_browser_turns [--checkpoint DIR]`.

Serves configs/deployments/demo-chat.toml with a remote tool that is never ready, asks in a headless Chromium, and
prints what the page showed. Ends with 1 where an answer is wrong. Needs scripts/fetch_encoder and bubblewrap.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, Error, Page, expect, sync_playwright
from rich.console import Console
from rich.table import Table

from scripts.browser_turns.turns import FILES, TURNS, BrowserTurn, Shown, UnexpectedPageError
from scripts.flags import flags_of

ROOT = Path(__file__).resolve().parents[1]
DEPLOYMENT = ROOT / "configs" / "deployments" / "demo-chat.toml"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
READY = "ready at "
PATIENCE_MS = 300_000
STOP_SECONDS = 120
_MOST = 160  # characters of a cell


@dataclass(frozen=True, slots=True)
class Outcome:
    turn: BrowserTurn
    shown: Shown
    fault: str  # empty: as it should be


def deployment_text(folder: Path, checkpoint: Path) -> str:
    """The shipped deployment, keeping what it keeps in `folder`, with one more tool."""
    text = DEPLOYMENT.read_text(encoding="utf-8")
    for written, meant in (
        ('"../checkpoints/demo"', f'"{checkpoint.resolve()}"'),
        ('"../../.build/demo-chat/', f'"{folder}/'),
        ('"../../', f'"{ROOT}/'),
    ):
        text = text.replace(written, meant)
    return f'{text}\n[tools.mcp.jobs]\ncommand = ["{sys.executable}", "{ROOT}/scripts/browser_turns/job_server.py"]\n'


@contextmanager
def served(checkpoint: Path) -> Iterator[str]:
    """The address of a server, from its readiness to its end. Raises SystemExit where it does not start."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "demo-chat.toml"
        file.write_text(deployment_text(Path(folder), checkpoint), encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-m", "serving", "serve", str(file), "--port=0", "--drain-seconds=2"],
            cwd=ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield _address(process)
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=STOP_SECONDS)


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    seen: list[str] = []
    for line in process.stderr:
        seen.append(line)
        if READY in line:
            return line.split(READY, 1)[1].split()[0]
    raise SystemExit(f"the server did not start:\n{''.join(seen)}")


def printed(browser: Browser, html: str) -> bytes:
    """As a PDF, by Chromium."""
    page = browser.new_page()
    page.set_content(html)
    made = page.pdf()
    page.close()
    return made


def played(browser: Browser, address: str, turn: BrowserTurn) -> Outcome:
    """In a context of its own: no conversation, no chosen tool."""
    context = browser.new_context(base_url=address)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto("/")
    expect(page.locator("#model")).to_be_enabled()
    if turn.file is not None:
        file = {"name": turn.file, "mimeType": "application/pdf", "buffer": printed(browser, FILES[turn.file])}
        page.locator("#file").set_input_files(file)  # pyright: ignore[reportArgumentType]
        expect(page.get_by_role("button", name=f"Remove {turn.file}")).to_be_visible()
    if turn.tool is not None:
        page.get_by_role("button", name=turn.tool, exact=True).click()
    page.fill("#message", turn.question)
    page.locator(".send").click()
    expect(page.locator(".message.assistant .footer").last).to_be_visible()
    outcome = _judged(page, turn)
    context.close()
    return outcome


def _judged(page: Page, turn: BrowserTurn) -> Outcome:
    answer = page.locator(".message.assistant").last
    calls = " | ".join(" ".join(text.split()) for text in answer.locator(".tool-call").all_inner_texts())
    shown = Shown(calls, answer.locator(".prose").inner_text(), answer.locator(".ending").inner_text())
    try:
        turn.check(page, shown)
    except (UnexpectedPageError, AssertionError, Error) as error:  # the last two are Playwright's
        return Outcome(turn, shown, str(error).splitlines()[0])
    return Outcome(turn, shown, "")


def table_of(outcomes: Sequence[Outcome]) -> Table:
    table = Table("turn", "question", "calls", "answer", "ending", "", show_lines=True)
    for outcome in outcomes:
        turn, shown = outcome.turn, outcome.shown
        cells = (turn.name, turn.question, shown.calls, shown.text, shown.ending, outcome.fault or "right")
        table.add_row(*(cell if len(cell) <= _MOST else f"{cell[:_MOST]}..." for cell in cells))
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = flags_of(__doc__)
    parser.add_argument("--checkpoint", type=Path, default=ROOT / "configs" / "checkpoints" / "demo")
    given = parser.parse_args(arguments)
    expect.set_options(timeout=PATIENCE_MS)
    with served(given.checkpoint) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        outcomes = [played(browser, address, turn) for turn in TURNS]
        browser.close()
    Console().print(table_of(outcomes))
    return int(any(outcome.fault for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
