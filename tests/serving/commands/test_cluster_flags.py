"""What of a cluster may stand in a file or in flags, and what is refused before anything listens."""

from pathlib import Path

import pytest

from serving.cli import build_parser, main
from serving.commands.deployment_flags import deployment_arguments, deployment_from
from serving.commands.follower import check_process
from serving.config import ClusterConfig, load_deployment
from serving.errors import ConfigError
from serving.supervisor import EXIT_SETUP
from serving.web_names import host_and_port, is_unspecified


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pair.toml"


def written(file: Path, cluster: str) -> Path:
    file.write_text(f'name = "pair"\n[model]\ncheckpoint = "weights"\n[cluster]\n{cluster}\n')
    return file


def test_flags_stand_over_the_file_and_reach_the_child_processes(file: Path) -> None:
    written(file, 'processes = 2\ncoordinator = "box:7200"\nruntime_port = 7201')
    parser = build_parser("serve")
    args = parser.parse_args(["serve", str(file), "--processes=4", "--coordinator=10.0.0.1:7300", "--listen=10.0.0.1"])
    wanted = ClusterConfig(processes=4, coordinator="10.0.0.1:7300", listen="10.0.0.1", runtime_port=7201)
    assert deployment_from(args).cluster == wanted
    child = parser.parse_args(["serve", *deployment_arguments(args)])
    assert deployment_from(child) == deployment_from(args)


@pytest.mark.parametrize(
    ("cluster", "param"),
    [
        ("processes = 0", "processes"),
        ("processes = 2", "coordinator"),
        ('processes = 2\ncoordinator = "box"', "coordinator"),
        ('processes = 2\ncoordinator = "box:0"', "coordinator"),
        ('processes = 2\ncoordinator = "0.0.0.0:7200"', "coordinator"),
        ('processes = 2\ncoordinator = "[::]:7200"', "coordinator"),
        ('processes = 2\ncoordinator = "box:7200"\nlisten = "0.0.0.0"', "listen"),
        ('processes = 2\ncoordinator = "box:7200"\nlisten = "box:7200"', "listen"),
        ('processes = 2\ncoordinator = "box:7200"\nruntime_port = 70000', "runtime_port"),
        ('processes = 2\ncoordinator = "box:7200"\ntoken = "no secrets in files"', "cluster.token"),
    ],
)
def test_what_cannot_be_a_cluster_is_refused_by_its_key(file: Path, cluster: str, param: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_deployment(written(file, cluster))
    assert refused.value.param == param


def test_a_process_that_the_cluster_does_not_have_is_refused(file: Path) -> None:
    deployment = load_deployment(written(file, 'processes = 3\ncoordinator = "box:7200"'))
    check_process(deployment, 2)
    with pytest.raises(ConfigError, match=r"--process-id is 1 \.\. 2"):
        check_process(deployment, 3)


@pytest.mark.parametrize("command", [["serve"], ["follower", "--process-id=1"]])
def test_no_host_starts_without_the_token(
    command: list[str], file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WEFT_CLUSTER_TOKEN", raising=False)
    written(file, 'processes = 2\ncoordinator = "box:7200"')
    assert main([*command, str(file)]) == EXIT_SETUP
    assert "WEFT_CLUSTER_TOKEN" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("Box.lan:7200", ("box.lan", 7200)),
        ("10.0.0.1:7200", ("10.0.0.1", 7200)),
        ("[::1]:7200", ("::1", 7200)),
        ("box", None),
        ("box:", None),
        ("box:70000", None),
        ("http://box:7200", None),
    ],
)
def test_an_address_is_a_name_and_a_port(text: str, address: tuple[str, int] | None) -> None:
    assert host_and_port(text) == address


def test_every_address_is_not_one_address() -> None:
    assert list(map(is_unspecified, ["0.0.0.0", "::", "[::]", "127.0.0.1", "box"])) == [True, True, True, False, False]
