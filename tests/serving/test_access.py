from pathlib import Path

import pytest

from serving.config import load_deployment
from serving.errors import ConfigError

GOOD = """
name = "m"
[model]
checkpoint = "w"
[auth]
keys = "keys.sqlite"
[auth.jwt]
issuer = "https://login.example"
audience = "weft"
keys_url = "https://login.example/jwks"
[tiers.gold]
tokens_per_minute = 100000
priority = "interactive"
models = ["m"]
[tenants.acme]
tier = "gold"
[limits]
redis = "redis://127.0.0.1:6379"
when_store_fails = "local"
[admission]
standard_seconds = 4
[usage]
ledger = "usage.sqlite"
[admin]
port = 0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "m.toml"


def test_every_table_of_the_gateway_is_read(file: Path) -> None:
    file.write_text(GOOD)
    access = load_deployment(file).access
    assert access.auth.keys == file.parent / "keys.sqlite"
    assert access.auth.jwt is not None
    assert access.auth.jwt.algorithms == ("RS256", "ES256")
    assert (access.tiers["gold"].tokens_per_minute, access.tenants["acme"].tier) == (100_000, "gold")
    assert (access.limits.when_store_fails, access.admission.standard_seconds) == ("local", 4.0)


@pytest.mark.parametrize(
    ("old", "new", "param"),
    [
        ('"https://login.example/jwks"', '"http://login.example/jwks"', "auth.jwt.keys_url"),
        ('keys_url = "https://login.example/jwks"', "", "auth.jwt.keys_file"),
        ("audience", 'algorithms = ["HS256"]\naudience', "auth.jwt.algorithms"),
        ("audience", 'algorithms = ["none"]\naudience', "auth.jwt.algorithms"),
        ("audience", "algorithms = []\naudience", "auth.jwt.algorithms"),
        ('"weft"', '""', "auth.jwt.audience"),
        ("100000", "0", "tiers.gold.tokens_per_minute"),
        ('"interactive"', '"urgent"', "tiers.gold.priority"),
        ('"interactive"', '"standard"\nbest_priority = "batch"', "tiers.gold.best_priority"),
        ("models", "weight = 0\nmodels", "tiers.gold.weight"),
        ("models", "context_tokens = 1\nmodels", "tiers.gold.context_tokens"),
        ('tier = "gold"', 'tier = "lead"', "tenants.acme.tier"),
        ("[tenants.acme]", '[tenants."a b"]', "tenants"),
        ("redis://127.0.0.1", "http://127.0.0.1", "limits.redis"),
        ("redis://127", "redis://:secret@127", "limits.redis"),
        ('"local"', '"ignore"', "limits.when_store_fails"),
        ("= 4", "= 0", "admission.standard_seconds"),
        ("standard_seconds", "cap_output_at = 0.1\nstandard_seconds", "admission.cap_output_at"),
        ("standard_seconds", "capped_output_tokens = 0\nstandard_seconds", "admission.capped_output_tokens"),
        ("port = 0", "port = 70000", "admin.port"),
        ("[usage]", "[usage]\nsecret = 1", "usage.secret"),
        ("[auth]", '[auth]\nmode = "none"', "auth.mode"),
        ("[tiers.gold]", '[auth.certificates]\nclient = "acme"\n[tiers.gold]', "auth.certificates"),
        ('redis = "redis://127.0.0.1:6379"', "", "limits.when_store_fails"),
        ("port = 0", "only_metrics_here = true", "admin.only_metrics_here"),
        ('models = ["m"]', 'models = ["n"]', "tiers.gold.models"),
    ],
)
def test_what_cannot_be_is_named(file: Path, old: str, new: str, param: str) -> None:
    assert GOOD.count(old) >= 1
    file.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ConfigError) as refused:
        load_deployment(file)
    assert refused.value.param == param


def test_certificates_go_with_the_authority_that_signs_them(file: Path) -> None:
    tls = '[server.tls]\ncertificate = "s.pem"\nkey = "s.key"\n'
    certificates = '[auth.certificates]\nclient = "acme"\n'
    file.write_text(f"{GOOD}{certificates}{tls}")
    with pytest.raises(ConfigError, match=r"auth\.certificates needs server\.tls\.client_authority"):
        load_deployment(file)
    file.write_text(f'{GOOD}{certificates}{tls}client_authority = "ca.pem"')
    assert load_deployment(file).access.auth.certificates == {"client": "acme"}
