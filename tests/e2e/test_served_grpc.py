"""gRPC of a real `weft serve`: the same model, the same answers, one readiness."""

import re
import subprocess
import sys
from pathlib import Path

import httpx

from serving.client import Client
from tests.e2e.conftest import ServedDemo

PAGE = Path(__file__).parents[2] / "docs" / "grpc.md"
QUESTION = [{"role": "user", "content": "What is 2 + 3?"}]


async def test_grpc_and_http_give_the_same_answer(served_demo: ServedDemo) -> None:
    body = {"messages": QUESTION, "temperature": 0, "max_tokens": 20}
    async with Client(served_demo.grpc_address) as client, httpx.AsyncClient(timeout=600) as http:
        assert await client.is_ready()
        over_http = (await http.post(f"{served_demo.url}/v1/chat/completions", json=body)).json()
        reply = await client.chat(QUESTION, temperature=0, max_tokens=20, timeout=600)
        async with client.stream_chat(QUESTION, temperature=0, max_tokens=20, timeout=600) as stream:
            streamed = "".join([chunk.text async for chunk in stream])
    assert reply.text == streamed == over_http["choices"][0]["message"]["content"] != ""
    assert reply.usage.prompt_tokens == over_http["usage"]["prompt_tokens"]


def test_the_example_of_the_documentation_runs(served_demo: ServedDemo, tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(example.replace("127.0.0.1:8001", served_demo.grpc_address), encoding="utf-8")
    done = subprocess.run([sys.executable, script], cwd=PAGE.parents[1], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("invalid_value temperature False\n")
