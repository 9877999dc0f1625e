"""Flags to a Deployment, and back again for a child process."""

import argparse
from pathlib import Path
from types import ModuleType

import pytest

from serving.commands import api, serve
from serving.commands.deployment_flags import add_deployment_flags, deployment_arguments, deployment_from
from serving.config import Deployment
from serving.errors import ConfigError

FILE = """
name = "tiny"
[model]
checkpoint = "weights"
[engine]
max_num_seqs = 4
max_waiting = 9
[server]
port = 9000
"""


def parsed(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_deployment_flags(parser, server=True)
    return parser.parse_args(argv)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(FILE)
    return path


def test_flags_win_over_the_file_and_the_rest_stays(file: Path) -> None:
    found = deployment_from(
        parsed(str(file), "--port", "1", "--dtype", "bfloat16", "--max-model-len", "64", "--served-model-name", "new")
    )
    assert (found.name, found.model.dtype, found.model.checkpoint) == ("new", "bfloat16", file.parent / "weights")
    assert (found.server.port, found.server.host) == (1, "127.0.0.1")
    assert (found.engine.max_model_len, found.engine.max_num_seqs, found.engine.max_waiting) == (64, 4, 9)


def test_a_name_that_is_empty_is_refused_and_not_taken_for_none(file: Path) -> None:
    with pytest.raises(ConfigError, match="name must not be empty"):
        deployment_from(parsed(str(file), "--served-model-name="))


def test_the_weights_of_a_deployment_may_lie_elsewhere(file: Path, tmp_path: Path) -> None:
    args = parsed(str(file), "--checkpoint", str(tmp_path))
    assert deployment_from(args).model.checkpoint == tmp_path
    assert f"--checkpoint={tmp_path}" in deployment_arguments(args)
    with pytest.raises(ConfigError, match="--checkpoint goes with a deployment"):
        deployment_from(parsed("--model", str(tmp_path), "--checkpoint", str(tmp_path)))


def test_a_model_directory_is_a_deployment_of_its_name(tmp_path: Path) -> None:
    found = deployment_from(parsed("--model", str(tmp_path)))
    assert (found.name, found.model.checkpoint) == (tmp_path.name, tmp_path)
    assert found == Deployment(name=tmp_path.name, model=found.model)


@pytest.mark.parametrize("kind", ["json", "text"])
def test_the_format_of_logs_is_the_flags_before_the_files(file: Path, kind: str) -> None:
    file.write_text('log_format = "json"' + FILE)
    assert deployment_from(parsed(str(file))).log_format == "json"
    assert deployment_from(parsed(str(file), f"--log-format={kind}")).log_format == kind


def test_names_are_listed_between_commas(file: Path) -> None:
    found = deployment_from(parsed(str(file), "--allowed-hosts", "box.lan, ::1", "--allowed-origins", "https://a.lan"))
    assert found.server.allowed_hosts == ("box.lan", "::1")
    assert found.server.allowed_origins == ("https://a.lan",)


def test_a_bare_name_is_looked_up_among_the_deployments(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs" / "deployments").mkdir(parents=True)
    file.rename(tmp_path / "configs" / "deployments" / "tiny.toml")
    monkeypatch.chdir(tmp_path)
    assert deployment_from(parsed("tiny")).name == "tiny"
    with pytest.raises(ConfigError, match=r"no deployment 'big'.*tiny"):
        deployment_from(parsed("big"))


def test_both_a_deployment_and_a_model_are_refused(file: Path) -> None:
    with pytest.raises(ConfigError, match="one of the two"):
        deployment_from(parsed(str(file), "--model", "x"))


def test_limits_that_cannot_hold_together_are_refused(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"the command line: engine\.max_num_batched_tokens"):
        deployment_from(parsed(str(file), "--max-num-batched-tokens", "2"))


@pytest.mark.parametrize(("flag", "says"), [("--max-model-len=1", "engine.max_model_len"), ("--host=", "server.host")])
def test_a_flag_out_of_its_range_is_refused(file: Path, flag: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"the command line: {says} must"):
        deployment_from(parsed(str(file), flag))


@pytest.mark.parametrize("command", [serve, api])
@pytest.mark.parametrize("value", ["nan", "inf", "-1", "soon"])
def test_the_time_to_drain_must_end(command: ModuleType, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    command.add_parser(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["tiny", "--socket=s", f"--drain-seconds={value}"])
    assert "argument --drain-seconds: must be" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ["{file}"],
        ["{file}", "--port", "0", "--host", "::1", "--chat-template", "a b.jinja"],
        [
            "{file}",
            "--host",
            "0.0.0.0",
            "--allowed-hosts",
            "box.lan, ::1",
            "--allowed-origins=https://a.lan,http://b:3",
        ],
        ["{file}", "--host", "0.0.0.0", "--allowed-hosts=", "--log-format", "json"],
        ["--model", "{folder}", "--max-num-seqs", "3", "--max-num-batched-tokens", "64", "--served-model-name", "-x y"],
    ],
)
def test_a_childs_arguments_describe_the_same_deployment(file: Path, flags: list[str]) -> None:
    argv = [flag.format(file=file, folder=file.parent) for flag in flags]
    if "-x y" in argv:
        argv = [*argv[:-2], "--served-model-name=-x y"]
    args = parsed(*argv)
    assert deployment_from(parsed(*deployment_arguments(args))) == deployment_from(args)
