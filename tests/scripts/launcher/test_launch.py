"""What would be run where, what stands in the way, and how it all ends. For a real launch see e2e/test_two_hosts.py."""

import copy
import json
import queue
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scripts.launcher.__main__ import main
from scripts.launcher.checks import check, facts_of
from scripts.launcher.hosts import Answer, Host, local_host
from scripts.launcher.replica import Replica
from serving.cli import build_parser
from serving.commands.deployment_flags import deployment_from

ROOT = Path(__file__).parents[3]
PATIENCE = 300.0  # seconds; only a broken test waits that long
TWO_NODES = ["--kind=gpu", "--hosts=n1,ops@n2"]
MODEL = ["deepseek-v3-16xh200", "--checkpoint=/models/deepseek-v3"]
NODE: dict[str, Any] = {
    "versions": {
        "python": "3.12.3",
        "weft": "0.1.0",
        "jax": "0.11.2",
        "jaxlib": "0.11.2",
        "jax-cuda13-plugin": "0.11.2",
    },
    "address": "10.0.0.1",
    "devices": {
        "driver": "580.65.06",
        "names": ["NVIDIA H200"] * 8,
        "total": [143771 << 20] * 8,
        "free": [143000 << 20] * 8,
    },
    "taken_ports": [],
    "cache": {"found": True},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    node = copy.deepcopy(NODE)
    *outer, last = path.split(".")
    inside = node
    for name in outer:
        inside = inside[name]
    inside[last] = value
    return node


class Answers:
    """Hosts that answer to probes, and write down what they were asked."""

    def __init__(self, *nodes: dict[str, Any] | Answer) -> None:
        self._nodes = list(nodes)
        self.asked: list[list[str]] = []

    def __call__(self, command: Sequence[str]) -> Answer:
        self.asked.append(list(command))
        node = self._nodes[len(self.asked) - 1]
        return node if isinstance(node, Answer) else Answer(0, f"welcome\n{json.dumps(node)}\n", "")


def never(command: Sequence[str]) -> Answer:
    raise AssertionError(f"a dry run has run {command}")


def test_a_dry_run_shows_what_each_host_is_asked_and_runs_and_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TWO_NODES, "--dry-run", *MODEL, "--port=8001"], never) == 0
    shown = capsys.readouterr().out
    commands = [shlex.split(line) for line in shown.splitlines() if line.startswith("    ssh ")]
    assert [command[-2] for command in commands] == ["n1", "ops@n2", "n1", "ops@n2"]
    asked, _, leads, follows = (command[-1] for command in commands)
    assert "--ports 8001 7200" in asked
    for script, role in ((leads, "serve"), (follows, "follower")):
        cd, _, weft = script.partition(" && exec ")
        words = shlex.split(weft)
        assert cd == "cd weft"
        assert words[:3] == [".venv/bin/python", "-m", "scripts.launcher.attached"]
        command = words[words.index("serving") + 1 :]
        args = build_parser(role).parse_args(command)
        cluster = deployment_from(args).cluster
        assert command[0] == role
        assert (cluster.processes, cluster.coordinator) == (2, "n1:7200")
    assert "--process-id=1" in follows
    assert "--process-id" not in leads


def test_a_slice_is_reached_worker_by_worker(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--kind=tpu", "--tpu=pod", "--zone=us-east5-a", "--workers=2", "--dry-run", "llama-3.3-70b-v5p-16"]
    assert main(flags, never) == 0
    commands = [shlex.split(line) for line in capsys.readouterr().out.splitlines() if line.startswith("    gcloud ")]
    assert [command[:6] for command in commands] == [["gcloud", "compute", "tpus", "tpu-vm", "ssh", "pod"]] * 4
    assert [command[7] for command in commands] == ["--worker=0", "--worker=1"] * 2


def test_one_host_needs_no_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--kind=gpu", "--dry-run", "llama-3.1-8b-h100"], never) == 0
    shown = capsys.readouterr().out
    assert "serving serve llama-3.1-8b-h100" in shown
    assert "--processes" not in shown
    assert "WEFT_CLUSTER_TOKEN" not in shown


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "name a deployment"),
        (["no-such-deployment"], "no deployment 'no-such-deployment'"),
        (["--hosts=a,a", *MODEL], "one host twice"),
        (["--hosts=local,a", *MODEL], "mixes local"),
        (["--hosts=,", *MODEL], "names no host"),
        (["--hosts=a,-oProxyCommand=x", *MODEL], "no name of a host"),
        (["--tpu=pod", *MODEL], "--zone"),
    ],
)
def test_flags_that_make_no_launch_are_refused(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--kind=gpu", *flags], never) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (Answer(255, "", "ssh: connect to host n2: No route to host\n"), "No route to host"),
        (Answer(0, "no json", ""), "cannot be asked"),
        (changed("versions.jax", "0.10.2"), "jax differs: 0.11.2 on n1, 0.10.2 on ops@n2"),
        (changed("devices.driver", "570.1"), "driver differs"),
        (changed("devices.names", ["NVIDIA H100"] * 8), "devices differs: 8 x NVIDIA H200 on n1, 8 x NVIDIA H100"),
        (changed("devices", {"problem": "nvidia-smi does not run"}), "ops@n2: nvidia-smi does not run"),
        (changed("devices.free", [143000 << 20] * 7 + [9 << 30]), "GPU 7 has 9216 of 143771 MiB free"),
        (changed("taken_ports", [7200]), "ops@n2: port 7200 is taken"),
        (changed("cache", {"problem": "/cache: Permission denied"}), "Permission denied"),
        (changed("versions", {"python": "3.12.3"}), "weft is not installed there"),
    ],
)
def test_what_stands_in_the_way_is_said_and_nothing_is_started(
    second: dict[str, Any] | Answer, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answers = Answers(NODE, second)
    assert main([*TWO_NODES, f"--logs={tmp_path}", *MODEL], answers) == 1
    said = capsys.readouterr().err
    assert message in said
    assert "nothing was started" in said
    assert not list(tmp_path.iterdir())


def test_the_leader_leaves_a_mark_for_which_the_others_look(tmp_path: Path) -> None:
    answers = Answers(NODE, changed("taken_ports", [1]))
    main([*TWO_NODES, f"--logs={tmp_path}", *MODEL], answers)
    marks = [re.findall(r"--(mark|look-for)=(\S+)", command[-1])[0] for command in answers.asked]
    assert [kind for kind, _ in marks] == ["mark", "look-for"]
    assert marks[0][1] == marks[1][1]


def test_hosts_that_are_alike_pass_and_a_cache_of_ones_own_is_only_slow() -> None:
    assert check({"n1": NODE, "n2": NODE}, "gpu", 16) == check({"n1": NODE}, "gpu", 8)
    findings = check({"n1": NODE, "n2": changed("cache", {"found": False})}, "gpu", 16)
    assert findings.problems == ()
    assert [host for host, _ in findings.warnings] == ["n2"]


@pytest.mark.parametrize("devices", [8, 32])
def test_a_mesh_takes_all_devices_of_several_hosts(devices: int) -> None:
    (problem,) = check({"n1": NODE, "n2": NODE}, "gpu", devices).problems
    assert problem[1].startswith(f"the mesh takes {devices} devices, and 2 hosts have 16")


def test_a_tpu_that_is_held_is_refused() -> None:
    node = changed("devices", {"names": ["tpu"] * 4, "held": ["77"]})
    node["versions"] = {"weft": "0.1.0", "libtpu": "0.0.42"}
    (problem,) = check({"w": node}, "tpu", 4).problems
    assert problem[1] == "its TPU is held by process 77"


def test_this_machine_answers_for_itself(tmp_path: Path) -> None:
    arguments = ["--kind=cpu", f"--cache={tmp_path / 'cache'}", "--mark=launch-1", "--look-for=launch-1"]
    done = subprocess.run(
        [sys.executable, "-m", "scripts.launcher.probe", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    facts = facts_of(Answer(0, done.stdout, ""))
    assert isinstance(facts, dict)
    assert check({"here": facts}, "cpu", 1).problems == ()
    assert facts["cache"] == {"found": True}


def attached(script: str) -> list[str]:
    """A host whose weft is a line of shell."""
    return [sys.executable, "-m", "scripts.launcher.attached", "--", "bash", "-c", script]


def started(tmp_path: Path, *scripts: str) -> tuple[Replica, list[tuple[str, str]]]:
    heard: list[tuple[str, str]] = []
    replica = Replica(tmp_path, lambda host, line: heard.append((host, line)))
    for number, script in enumerate(scripts):
        replica.start(local_host(number), attached(script), "the secret")
    return replica, heard


STAYS = "trap 'echo asked; exit 0' TERM; echo $WEFT_CLUSTER_TOKEN; while :; do sleep 0.1; done"


def test_when_one_dies_all_are_stopped_and_their_logs_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    replica, heard = started(tmp_path, STAYS, "echo dies; exit 7")
    assert replica.wait() == ("local-1", 7)
    assert replica.stop(drain_seconds=PATIENCE) == {"local-0": 0, "local-1": 7}
    assert (tmp_path / "local-1.log").read_text() == "dies\n"
    assert ("local-1", "dies") in heard
    assert (tmp_path / "local-0.log").read_text().splitlines()[-1:] in ([], ["asked"])


def test_a_host_gets_the_secret_by_its_input_and_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    host: Host = local_host(0)
    process = subprocess.Popen(
        host.command(f"exec {shlex.join(attached(STAYS))}"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("the secret\n")
    process.stdin.flush()
    assert process.stdout.readline() == "the secret\n"
    assert "the secret" not in Path(f"/proc/{process.pid}/cmdline").read_text()
    process.stdin.close()
    assert process.wait(PATIENCE) == 0
    assert process.stdout.read() == "asked\n"
    process.stdout.close()


def test_a_host_that_is_killed_is_not_taken_for_one_that_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    replica, _ = started(tmp_path, "kill -KILL $$")
    assert replica.wait() == ("local-0", 128 + signal.SIGKILL)
    replica.kill()


def test_a_host_that_does_not_end_is_killed_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    replica = Replica(tmp_path, lambda host, line: lines.put(line))
    replica.start(local_host(0), attached("trap '' TERM; echo up; while :; do sleep 1000; done"), "")
    assert lines.get(timeout=PATIENCE) == "up"
    # Returns once nobody is left that could write to the log.
    assert replica.kill() == {"local-0": -signal.SIGKILL}
