import pytest

from serving.web_names import host_name, host_of, is_loopback, origin_of, own_names


@pytest.mark.parametrize(
    ("authority", "host"),
    [
        ("localhost:8000", "localhost"),
        ("LocalHost.", "localhost"),
        ("[::1]:80", "::1"),
        ("[0:0:0:0:0:0:0:1]", "::1"),
        ("127.0.0.1:", "127.0.0.1"),
        ("gpu_box.lan", "gpu_box.lan"),
        *((bad, None) for bad in ("", ":80", "::1", "[::1", "[x]", "a b", "a@b", "a/b", "a:80:80", "a:http", "é.de")),
    ],
)
def test_the_host_of_a_header_is_read_without_its_port(authority: str, host: str | None) -> None:
    assert host_of(authority) == host


@pytest.mark.parametrize(
    ("text", "name"), [("::1", "::1"), ("[::1]", "::1"), ("Box", "box"), ("box:80", None), ("http://box", None)]
)
def test_a_name_has_no_port_and_no_scheme(text: str, name: str | None) -> None:
    assert host_name(text) == name


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("http://x:80", "http://x"),
        ("https://X:443", "https://x"),
        ("https://x:80", "https://x:80"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("chrome-extension://abc", "chrome-extension://abc"),
        *((bad, None) for bad in ("null", "*", "", "x", "http://", "http://x/", "http://x?y", "http://u@x", "//x")),
    ],
)
def test_an_origin_is_a_scheme_a_host_and_a_port(text: str, origin: str | None) -> None:
    assert origin_of(text) == origin


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        *((host, True) for host in ("localhost", "127.0.0.1", "127.8.9.1", "::1")),
        *((host, False) for host in ("0.0.0.0", "::", "192.168.1.5", "box", "localhost.evil.com")),
    ],
)
def test_loopback_is_what_this_machine_alone_can_reach(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback


def test_a_server_is_always_called_by_its_address_and_by_loopback_names() -> None:
    assert own_names("fe80::1%eth0") == {"localhost", "127.0.0.1", "::1", "fe80::1"}
