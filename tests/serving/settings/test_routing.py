"""What a deployment may say of further models and of the way to them."""

from pathlib import Path

import pytest

from serving.config import Deployment, load_deployment
from serving.errors import ConfigError

HEAD = """
name = "big"
[model]
checkpoint = "big"
"""
SMALL = """
[models.small.model]
checkpoint = "small"
[models.small.engine]
max_num_seqs = 2
"""
LAST = '[[routing.rules]]\nmodel = "auto"\ntarget = "big"\n'


def _load(folder: Path, *tables: str) -> Deployment:
    path = folder / "d.toml"
    path.write_text(HEAD + "".join(tables))
    return load_deployment(path)


def test_a_further_models_engine_reads_its_own_tables_and_none_of_the_servers(tmp_path: Path) -> None:
    deployment = _load(tmp_path, '[server]\nport = 9\n[embeddings]\ncheckpoint = "e"\nname = "e"\n', SMALL)
    small = deployment.of_model("small")
    assert (small.name, small.model.checkpoint, small.engine.max_num_seqs) == ("small", tmp_path / "small", 2)
    assert (small.embeddings, small.models) == (None, {})
    assert deployment.of_model("big") is deployment
    assert deployment.model_names == ("big", "small")


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (SMALL + "[models.small.adapters]\nslots = 1\n", "unknown key models.small.adapters"),
        (SMALL.replace("max_num_seqs = 2", "max_num_seqs = 0"), "models.small: engine.max_num_seqs must be"),
        (SMALL + "[models.small.prefix_cache]\ntenant_pins = 1\n", "prefix_cache.tenant_pins must be left out"),
        (SMALL.replace("small", "big"), "models.big has a name that means another model"),
        (SMALL.replace("models.small", 'models."a b"'), "models must have names"),
        (SMALL + '[cluster]\nprocesses = 2\ncoordinator = "10.0.0.1:1"\n', "models are not offered where cluster"),
        (SMALL + '[routing.fallback]\nbig = "tiny"\n', "routing.fallback.big must be one of the models big, small"),
        (SMALL + '[routing.fallback]\nbig = "small"\nsmall = "big"\n', "leads back to 'big'"),
        (SMALL + "[routing]\npatience_seconds = -1\n", "routing.patience_seconds must be in 0 .. 600"),
        (SMALL + LAST.replace('"auto"', '"small"'), "routing.rules[0].model must be a name of its own"),
        (SMALL + LAST.replace('"big"', '"tiny"'), "routing.rules[0].target must be one of the models"),
        (SMALL + LAST + 'tiers = ["iron"]\n', "routing.rules[0].tiers must be some of default"),
        (SMALL + LAST + "max_waiting = -1\n", "routing.rules[0].max_waiting must be at least 0"),
        (SMALL + LAST + "max_waiting = 1\n", "must end with its one rule without a condition"),
        (SMALL + LAST + LAST, "must end with its one rule without a condition"),
        (
            SMALL + '[routing.fallback]\nbig = "small"\n[admission]\nfallback_at = 0.5\n',
            "admission.fallback_at (0.5) must be at least admission.cap_output_at",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(tmp_path: Path, tables: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        _load(tmp_path, tables)
    assert message in refused.value.message
