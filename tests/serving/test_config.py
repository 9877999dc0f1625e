"""Deployment files: what is wrong is said with the file and the key."""

import re
from pathlib import Path

import pytest

from serving.config import (
    Deployment,
    EmbeddingsConfig,
    EngineConfig,
    MeshConfig,
    ModelConfig,
    load_deployment,
    load_mesh,
)
from serving.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"
LEAST = {"name": '"tiny"', "model.checkpoint": '"weights"'}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tiny.toml"


def written(file: Path, **keys: str) -> Path:
    """A deployment file with the least that it needs, and `keys` ("engine.page_size") as TOML values over it."""
    lines = [f"{key} = {value}" for key, value in (LEAST | keys).items()]
    file.write_text("\n".join(lines))
    return file


def refused(file: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_deployment(file)
    assert str(file) in caught.value.message
    return caught.value


def test_the_least_file_takes_every_default(file: Path) -> None:
    found = load_deployment(written(file))
    assert found == Deployment(name="tiny", model=ModelConfig(checkpoint=file.parent / "weights"))


def test_a_path_is_relative_to_the_file_and_an_absolute_one_stays(tmp_path: Path) -> None:
    folder = tmp_path / "deployments"
    folder.mkdir()
    keys = {"model.checkpoint": '"../weights"', "engine.compilation_cache": '"/var/cache"'}
    found = load_deployment(written(folder / "a.toml", **keys))
    assert found.model.checkpoint == tmp_path / "weights"
    assert found.engine.compilation_cache == Path("/var/cache")


@pytest.mark.parametrize("value", ['"../meshes/eight.toml"', "{ tensor = 8 }"])
def test_a_mesh_is_a_file_or_a_table(tmp_path: Path, value: str) -> None:
    for folder in ("meshes", "deployments"):
        (tmp_path / folder).mkdir()
    (tmp_path / "meshes" / "eight.toml").write_text("tensor = 8")
    deployment = load_deployment(written(tmp_path / "deployments" / "tiny.toml", mesh=value))
    assert deployment.mesh == MeshConfig(tensor=8)


def test_a_fault_of_a_mesh_file_names_that_file(tmp_path: Path) -> None:
    (tmp_path / "mesh.toml").write_text("tensors = 8")
    with pytest.raises(
        ConfigError, match=r"mesh\.toml: unknown key tensors; known here: data, expert, pipeline, tensor"
    ):
        load_deployment(written(tmp_path / "tiny.toml", mesh='"mesh.toml"'))


@pytest.mark.parametrize("path", sorted((CONFIGS / "meshes").glob("*.toml")), ids=lambda path: path.stem)
def test_a_mesh_that_comes_with_weft_is_what_its_name_says(path: Path) -> None:
    words = path.stem.split("-")
    assert load_mesh(path) == MeshConfig(**dict(zip(words[::2], map(int, words[1::2]), strict=True)))


@pytest.mark.parametrize("path", sorted((CONFIGS / "deployments").glob("*.toml")), ids=lambda path: path.stem)
def test_a_deployment_that_comes_with_weft_can_be_read(path: Path) -> None:
    deployment = load_deployment(path)
    architecture = deployment.model.architecture
    assert architecture is None or architecture.is_file()


def test_a_whole_number_is_taken_for_a_time(file: Path) -> None:
    assert load_deployment(written(file, **{"engine.step_timeout_seconds": "90"})).engine.step_timeout_seconds == 90.0


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("nmae", '"x"', "known here: .*log_format, .*model, .*name, .*plan, .*server"),
        ("engine.page_sise", "16", "page_size"),
        ("engine.page_size", '"16"', "must be int, not str"),
        ("engine.page_size", "true", "must be int, not bool"),
        ("engine.page_size", "16.0", "must be int, not float"),
        ("engine.prefix_caching", "1", "must be bool, not int"),
        ("engine.step_timeout_seconds", "true", "must be float, not bool"),
        ("engine.token_buckets", "8", "must be a list"),
        ("engine.token_buckets", "[1, true]", r"token_buckets\[1\] must be int, not bool"),
        ("model.dtype", '"float16"', "'float32', 'bfloat16'"),
        ("model.checkpoint", "7", "must be Path, not int"),
        ("server.port", '"http"', "must be int, not str"),
        ("server", "3", "must be a table"),
        ("log_format", '"xml"', "'json', 'text'"),
    ],
)
def test_an_unknown_key_or_a_wrong_type_is_refused(file: Path, key: str, value: str, says: str) -> None:
    error = refused(written(file, **{key: value}))
    assert key in error.message
    assert error.param is not None
    assert error.param.startswith(key)
    with pytest.raises(ConfigError, match=says):
        load_deployment(file)


@pytest.mark.parametrize(
    ("key", "bad", "good"),
    [
        ("mesh.tensor", ["0", "-8"], ["1", "8"]),
        ("engine.max_model_len", ["1", "-5"], ["2"]),
        ("engine.max_num_seqs", ["0"], ["1"]),
        ("engine.max_num_batched_tokens", ["0", "31"], ["32"]),
        ("engine.max_waiting", ["0"], ["1"]),
        ("engine.page_size", ["0"], ["1"]),
        ("engine.sequence_parallel_tokens", ["-1"], ["0", "1"]),
        ("engine.cpu_threads", ["0"], ["1"]),
        ("engine.num_pages", ["0", "-1"], ["1"]),
        ("engine.cache_bytes", ["0"], ["1"]),
        ("engine.step_timeout_seconds", ["0", "-1.5", "inf", "nan"], ["0.5"]),
        ("engine.aging_seconds", ["0", "inf"], ["0.5"]),
        ("engine.target_inter_token_ms", ["0", "-1", "nan"], ["25"]),
        ("engine.token_buckets", ["[0]", "[8, 513]"], ["[1, 512]"]),
        ("server.port", ["-1", "65536"], ["0", "65535"]),
        ("server.max_body_bytes", ["1023"], ["1024"]),
        ("server.max_streams", ["0"], ["1"]),
        ("server.drain_seconds", ["-1.0", "86401.0"], ["0.0", "30"]),
        ("streams.max_bytes", ["1048575"], ["1048576"]),
        ("streams.retain_seconds", ["0.0"], ["1.0"]),
        ("streams.grace_seconds", ["-1.0"], ["0.0", "60"]),
        ("server.host", ['""'], ['"::1"']),
        ("server.allowed_hosts", ['["http://x"]', '["x:80"]', '["*.x"]', '[""]'], ['["x", "::1", "*"]', "[]"]),
        (
            "server.allowed_origins",
            ['["x"]', '["*"]', '["null"]', '["https://x/"]'],
            ['["https://x", "http://x:3000"]'],
        ),
        ("name", ['""'], ['"x"']),
    ],
)
def test_a_value_out_of_its_range_is_refused_with_its_key(
    file: Path, key: str, bad: list[str], good: list[str]
) -> None:
    for value in bad:
        error = refused(written(file, **{key: value}))
        assert f"{key} " in error.message
        assert key.endswith(error.param or "nothing")
    for value in good:
        load_deployment(written(file, **{key: value}))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "box.lan"])
def test_a_server_that_others_can_reach_must_be_told_its_names(file: Path, host: str) -> None:
    error = refused(written(file, **{"server.host": f'"{host}"'}))
    assert error.param == "allowed_hosts"
    assert "server.allowed_hosts must be given" in error.message
    load_deployment(written(file, **{"server.host": f'"{host}"', "server.allowed_hosts": "[]"}))


def test_several_tokens_a_dispatch_are_refused_beside_a_promise_between_tokens(file: Path) -> None:
    promise = {"engine.target_inter_token_ms": "25"}
    error = refused(written(file, **promise, **{"engine.decode_rounds": "4"}))
    assert (error.param, "target_inter_token_ms" in error.message) == ("decode_rounds", True)
    load_deployment(written(file, **promise, **{"engine.decode_rounds": "1"}))


def test_every_number_of_a_deployment_has_a_range() -> None:
    """A key that is added must be added above."""
    numbers = {name for name, hint in EngineConfig.__annotations__.items() if re.search(r"\b(int|float)\b", str(hint))}
    assert numbers == {
        *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "max_waiting", "page_size", "num_pages"),
        *("cache_bytes", "step_timeout_seconds", "token_buckets", "cpu_threads", "aging_seconds"),
        *("target_inter_token_ms", "decode_rounds", "sequence_parallel_tokens"),
    }


@pytest.mark.parametrize(
    ("text", "key"),
    [("[model]\ncheckpoint = 'w'", "name"), ("name = 'a'", "model"), ("name = 'a'\n[model]", "model.checkpoint")],
)
def test_a_missing_key_is_named(file: Path, text: str, key: str) -> None:
    file.write_text(text)
    error = refused(file)
    assert error.message.endswith(f"missing key {key}")
    assert error.param == key


@pytest.mark.parametrize(
    ("streams", "param"),
    [
        ('log = "sqlite"', "path"),
        ('log = "redis"', "redis"),
        ('path = "x.sqlite"', "path"),
        ('log = "redis"\nredis = "host:6379"', "redis"),
        ('log = "sqlite"\npath = "x"\nredis = "redis://h"', "redis"),
        ('log = "tape"', "streams.log"),
    ],
)
def test_a_log_of_streams_has_its_place_and_no_other(file: Path, streams: str, param: str) -> None:
    file.write_text(f"name = 'a'\n[model]\ncheckpoint = 'w'\n[streams]\n{streams}")
    assert refused(file).param == param


@pytest.mark.parametrize("content", [b"name = ", b"name = 1\nname = 2", b"\xff\xfe"])
def test_a_file_that_is_no_toml_is_refused(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert "not valid TOML" in refused(file).message


def test_a_file_that_is_not_there_or_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert "no such deployment file" in refused(tmp_path / "absent.toml").message
    assert "cannot be read" in refused(tmp_path).message


@pytest.mark.parametrize(
    ("traces", "param"),
    [('endpoint = "collector:4317"', "endpoint"), ("sample = 1.5", "sample"), ("ratio = 0.5", "traces.ratio")],
)
def test_traces_go_to_an_address_and_a_share_is_a_share(file: Path, traces: str, param: str) -> None:
    file.write_text(f"name = 'a'\n[model]\ncheckpoint = 'w'\n[traces]\n{traces}")
    assert refused(file).param == param


ENCODER = "[embeddings]\ncheckpoint = 'e'\n"


def test_an_encoder_has_a_folder_and_a_name_of_its_own(file: Path) -> None:
    text = "name = 'a'\n[model]\ncheckpoint = 'w'\n"
    file.write_text(text)
    assert load_deployment(file).embeddings is None
    file.write_text(f"{text}{ENCODER}name = 'b'")
    found = load_deployment(file).embeddings
    assert found == EmbeddingsConfig(checkpoint=file.parent / "e", name="b", max_tokens=256)


@pytest.mark.parametrize(
    ("text", "param"),
    [
        (ENCODER, "embeddings.name"),
        (f"{ENCODER}name = 'a'", "name"),
        (f"{ENCODER}name = ''", "name"),
        (f"{ENCODER}name = 'b'\nmax_tokens = 0", "max_tokens"),
        (f"{ENCODER}name = 'b'\n[cluster]\nprocesses = 2\ncoordinator = '10.0.0.1:7200'", "embeddings"),
    ],
)
def test_an_encoder_that_could_not_be_served_is_refused(file: Path, text: str, param: str) -> None:
    file.write_text(f"name = 'a'\n[model]\ncheckpoint = 'w'\n{text}")
    assert refused(file).param == param


def test_files_have_a_folder_beside_the_deployment_and_limits_that_hold_something(file: Path) -> None:
    assert load_deployment(written(file)).files.folder is None
    assert load_deployment(written(file, **{"files.folder": '"kept"'})).files.folder == file.parent / "kept"
    for name in ("max_file_bytes", "max_tenant_bytes", "max_tenant_files", "max_batch_requests", "concurrent_requests"):
        assert refused(written(file, **{f"files.{name}": "0"})).param == name
    assert load_deployment(written(file)).files.retain_batch_seconds == 30 * 86400
    for_ever = {"files.folder": '"kept"', "files.retain_batch_days": "0"}
    assert load_deployment(written(file, **for_ever)).files.retain_batch_seconds is None
    assert refused(written(file, **{"files.retain_batch_days": "-1"})).param == "retain_batch_days"
