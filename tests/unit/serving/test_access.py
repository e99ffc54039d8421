"""Tokens, addresses and the rate of a client; errors of the command before a model is loaded."""

import socket
from pathlib import Path

import pytest
from raised import raises_code

from paratune.commands.serve import serve
from paratune.serving.access import ClientRateLimit, check_host, client_name, is_loopback, read_token, require_token
from paratune.serving.server import open_socket


def test_other_addresses_than_loopback_need_a_token(tmp_path: Path):
    for host in ("127.0.0.1", "127.3.2.1", "::1", "localhost"):
        assert is_loopback(host)
        require_token(host, None)
    for host in ("0.0.0.0", "::", "10.0.0.2", "example.org"):
        with raises_code("serve.token_unusable", host=host):
            require_token(host, None)
    with raises_code("serve.token_unusable", host="0.0.0.0"):
        serve(str(tmp_path), host="0.0.0.0")


def test_a_token_comes_from_a_file_or_the_environment(tmp_path: Path):
    file = tmp_path / "token"
    file.write_text("abcdefghijklmnop\n")
    assert read_token(file, {}) == "abcdefghijklmnop"
    assert read_token(None, {"PARATUNE_SERVE_TOKEN": "0123456789abcdef"}) == "0123456789abcdef"
    assert read_token(None, {}) is None
    for content in ("short", "with a space inside", "äöüäöüäöüäöüäöüäöü"):
        file.write_text(content)
        with raises_code("serve.token_unusable", path=file):
            read_token(file, {})
    with raises_code("serve.token_unusable"):
        read_token(tmp_path / "none", {})


@pytest.mark.parametrize(
    "header",
    [
        *(None, "", "a.example", "127.0.0.1.a.example", "[::2]:80", "localhost.a.example:80", "[localhost]evil.com"),
        *(
            "localhost:abc",
            "localhost:80:80",
            "[::1]x",
            "[::1",
            "::1",
            "[localhost]",
            "[127.0.0.1]",
            ":80",
            "[]",
            "[]:80",
        ),
        *("localhost@evil.com", "user@localhost", "localhost/evil.com", "localhost evil.com", "localhost, evil.com"),
        *("localhost\n", "localhost:80\n", "localhost\x00", "localhost:\u0661", "localhost."),
    ],
)
def test_other_host_names_are_refused_on_loopback(header: str | None):
    with raises_code("serve.host"):
        check_host("127.0.0.1", header)
    check_host("0.0.0.0", header)


@pytest.mark.parametrize("header", ["localhost", "LocalHost:80", "127.0.0.1:", "127.0.0.1:8765", "[::1]", "[::1]:80"])
def test_names_of_this_machine_are_accepted(header: str):
    check_host("127.0.0.1", header)


def test_an_address_of_loopback_that_is_served_is_accepted():
    check_host("127.3.2.1", "127.3.2.1:80")
    check_host("0:0:0:0:0:0:0:1", "[0:0:0:0:0:0:0:1]:80")
    with raises_code("serve.host"):
        check_host("127.3.2.1", "127.3.2.2:80")


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("10.0.0.2", "10.0.0.2"),
        ("::ffff:10.0.0.2", "10.0.0.2"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::1"),
        ("testclient", "testclient"),
    ],
)
def test_addresses_of_one_network_of_ipv6_are_one_client(address: str, name: str):
    assert client_name(address) == name


def test_the_rate_has_a_burst_and_a_time_to_retry():
    now = 0.0
    rate = ClientRateLimit(2.0, lambda: now)
    for _ in range(4):  # the burst of two seconds
        rate.check("a")
    with raises_code("serve.rate", retry_after_s=1):
        rate.check("a")
    rate.check("b")
    now = 0.5  # one more request
    rate.check("a")
    with raises_code("serve.rate"):
        rate.check("a")


def test_a_port_in_use_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with raises_code("serve.port", host="127.0.0.1", port=port):
            open_socket("127.0.0.1", port)


@pytest.mark.parametrize(("option", "value"), [("port", 70000), ("port", -1), ("rate", 0)])
def test_numbers_outside_their_range_are_errors(tmp_path: Path, option: str, value: int):
    with raises_code("cli.invalid_value"):
        serve(str(tmp_path), **{option: value})  # type: ignore[arg-type]
