import asyncio
import json
from pathlib import Path

import pytest

from serving.cli import main
from serving.sessions.conversations.conversations import Conversations
from serving.sessions.conversations.records import Owner
from serving.sessions.conversations.sqlite_store import SqliteConversationStore


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    path = tmp_path / "deployment.toml"
    path.write_text('name = "m"\n[model]\ncheckpoint = "."\n[conversations]\npath = "kept.sqlite"\n')
    return path


async def fill(path: Path) -> None:
    conversations = Conversations(SqliteConversationStore(path))
    for owner in (Owner("acme", "ada"), Owner("acme", "bob"), Owner("else", "ada")):
        item = {"id": "msg_1", "type": "message", "content": f"{owner.user} of {owner.tenant}"}
        await conversations.create_conversation(owner, {}, [item], 1)
    await conversations.store.close()


def test_a_users_conversations_are_exported_and_nobody_elses(
    deployment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = deployment.with_name("kept.sqlite")
    asyncio.run(fill(path))
    assert main(["conversations", "export", str(deployment), "--tenant=acme", "--user=ada"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["turns"][0]["items"][0]["content"] == "ada of acme"
    assert main(["conversations", "export", str(deployment), "--tenant=acme"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_store_that_is_not_there_is_not_made(deployment: Path) -> None:
    assert main(["conversations", "export", str(deployment), "--tenant=acme"]) == 78
    assert not deployment.with_name("kept.sqlite").exists()
