"""Test connections to Prometheus.

The tests cover what is accepted, the message for what is rejected, and that no secret is ever
printed.
"""

from pathlib import Path

import pytest

from tests.support.messages import Messages
from triton_pipelines.autoscaling.metrics.connection import Connection, Security
from triton_pipelines.autoscaling.metrics.connections_file import (
    ConnectionsError,
    load_connections,
    parse_connections,
    single_connection,
)
from triton_pipelines.autoscaling.metrics.secret_files import SECRET_BYTES_MAX, SecretFileError

FULL = """
connections:
  - name: default
    url: https://prometheus.monitoring.svc:9090/prom/
    bearerTokenFile: /run/token
    tls: {caFile: /run/ca.crt, certFile: /run/tls.crt, keyFile: /run/tls.key}
    tenant: {header: X-Scope-OrgID, value: team-a}
    matchers: {cluster: a}
    labels: {namespace: exported_namespace, pod: exported_pod}
    containerLabels: {container: container_name}
    timeoutSeconds: 2.5
    namespaces: [team-a, team-b]
  - name: other
    url: http://10.0.0.1:9090
    basicAuth: {usernameFile: /run/user, passwordFile: /run/password}
    security: Insecure
"""


def test_everything_that_can_be_said() -> None:
    found = parse_connections(FULL)
    assert list(found) == ["default", "other"]
    one = found["default"]
    assert one.url == "https://prometheus.monitoring.svc:9090/prom"
    assert (one.labels.namespace, one.labels.pod) == ("exported_namespace", "exported_pod")
    assert (one.container_labels.namespace, one.container_labels.container) == (
        "namespace",
        "container_name",
    )
    assert dict(one.matchers) == {"cluster": "a"}
    assert one.timeout_seconds == 2.5
    assert [one.permits(namespace) for namespace in ("team-a", "team-b", "team")] == [
        True,
        True,
        False,
    ]
    assert found["other"].permits("team")
    assert found["other"].security is Security.INSECURE


def test_one_url_is_the_connection_default(messages: Messages) -> None:
    assert single_connection("http://prometheus:9090")["default"].url == "http://prometheus:9090"
    with messages.raises(ConnectionsError, match="URL"):
        single_connection("prometheus:9090")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must be a mapping"),
        ("connections: []", "connections must have at least one"),
        ("a: [", "YAML"),
        ("connections: [{name: a}]", r"connections\[0\].url"),
        ("connections: [{url: 'http://a', token: x}]", r"connections\[0\].token"),
        (
            "connections: [{url: 'http://a', name: A_b}]",
            r"connections\[0\].name",
        ),
        (
            "connections: [{url: 'http://a'}, {url: 'http://b'}]",
            r"connections\[1\].name",
        ),
        ("connections: [{url: 'ftp://a'}]", r"connections\[0\].url"),
        ("connections: [{url: 'http://a', namespaces: []}]", r"connections\[0\].namespaces"),
        (
            "connections: [{url: 'http://a', namespaces: ['team-*']}]",
            r"connections\[0\].namespaces",
        ),
        ("connections: [{url: 'http://a:x'}]", r"connections\[0\].url"),
        ("connections: [{url: 'http://a/?q=1'}]", "contains a query or fragment"),
        ("connections: [{url: 'http://a/api/v1/'}]", "api/v1"),
        ("connections: [{url: 'http://a', bearerTokenFile: /t}]", "unencrypted over http"),
        (
            (
                "connections: [{url: 'https://a', bearerTokenFile: /t, basicAuth: {usernameFile: "
                "/u, passwordFile: /p}}]"
            ),
            "cannot be combined; remove one",
        ),
        (
            "connections: [{url: 'https://a', tls: {certFile: /c}}]",
            r"connections\[0\].tls",
        ),
        ("connections: [{url: 'http://a', tls: {caFile: /c}}]", "requires an https:// URL"),
        (
            "connections: [{url: 'https://a', security: Maybe}]",
            r"connections\[0\].security",
        ),
        (
            "connections: [{url: 'https://a', tenant: {header: Authorization, value: x}}]",
            "a reserved header",
        ),
        (
            "connections: [{url: 'https://a', tenant: {header: 'a b', value: x}}]",
            "is not a valid header name",
        ),
        ("connections: [{url: 'https://a', tenant: {}}]", "valueFile"),
        ("connections: [{url: 'https://a', tenant: {value: 'a b'}}]", "printable ASCII"),
        ("connections: [{url: 'https://a', matchers: {a-b: x}}]", "'a-b'"),
        (
            "connections: [{url: 'https://a', matchers: {pod: x}}]",
            "the operator sets pod itself; remove pod from matchers",
        ),
        (
            "connections: [{url: 'https://a', labels: {pod: __name__}}]",
            r"connections\[0\].labels.pod",
        ),
        (
            "connections: [{url: 'https://a', timeoutSeconds: 0.1}]",
            "timeoutSeconds",
        ),
    ],
)
def test_each_mistake_has_its_field(text: str, words: str, messages: Messages) -> None:
    with messages.raises(ConnectionsError, match=words):
        parse_connections(text)


def test_all_mistakes_are_said_at_once() -> None:
    with pytest.raises(ConnectionsError) as raised:
        parse_connections("connections: [{name: A}, {url: 'ftp://x'}]", "/etc/x.yaml")
    assert len(str(raised.value).splitlines()) == 3
    assert all(
        line.startswith("/etc/x.yaml: connections[") for line in str(raised.value).splitlines()
    )


@pytest.mark.parametrize(
    "text",
    [
        "connections: [{url: 'https://user:hunter22@prometheus'}]",
        "connections: [{url: 'https://a', bearerToken: hunter22}]",
        "connections: [{url: 'https://a', basicAuth: {username: u, password: hunter22}}]",
        "connections: [{url: 'https://a', tenant: {value: 'hunter22 x'}}]",
        "connections: [{url: 'https://a', bearerTokenFile: {value: hunter22}}]",
        "connections: [{url: 'https://a', bearerTokenFile: [hunter22",
    ],
)
def test_what_was_written_in_the_wrong_place_is_not_repeated(text: str) -> None:
    with pytest.raises(ConnectionsError) as raised:
        parse_connections(text)
    assert "hunter22" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_file_that_is_not_there(tmp_path: Path, messages: Messages) -> None:
    with messages.raises(ConnectionsError, match=r"connections\.yaml"):
        load_connections(tmp_path / "connections.yaml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with messages.raises(ConnectionsError):
        load_connections(tmp_path / "binary")


def test_credentials_are_read_each_time_and_never_shown(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first-secret\n")
    connection = Connection(url="https://a", bearer_token_file=token)
    read = connection.credentials()
    assert read.headers["Authorization"] == "Bearer first-secret"
    assert "first-secret" not in repr(read) + str(read) + repr(connection)
    token.write_text("second-secret")
    assert connection.credentials().headers["Authorization"] == "Bearer second-secret"


def test_basic_and_tenant_from_files(tmp_path: Path) -> None:
    for name, text in (("user", "me"), ("password", "pass word\n"), ("tenant", "a|b\n")):
        (tmp_path / name).write_text(text)
    connection = Connection.model_validate(
        {
            "url": "https://a",
            "basicAuth": {"usernameFile": tmp_path / "user", "passwordFile": tmp_path / "password"},
            "tenant": {"header": "X-Tenant", "valueFile": tmp_path / "tenant"},
        }
    )
    read = connection.credentials()
    assert read.basic == ("me", "pass word")
    assert dict(read.headers) == {"X-Tenant": "a|b"}


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"\n",
        b"two words",
        b"line\r\nX-Evil: 1",
        b"\xff\xff",
        b"x" * (SECRET_BYTES_MAX + 1),
    ],
)
def test_a_token_file_that_cannot_be_used_names_itself_and_not_its_content(
    tmp_path: Path, data: bytes | None, messages: Messages
) -> None:
    token = tmp_path / "token"
    if data is not None:
        token.write_bytes(data)
    with messages.raises(SecretFileError) as raised:
        Connection(url="https://a", bearer_token_file=token).credentials()
    assert "Evil" not in str(raised.value)
    assert "words" not in str(raised.value)


def test_certificates_are_known_to_have_changed(tmp_path: Path, messages: Messages) -> None:
    authority = tmp_path / "ca.crt"
    connection = Connection.model_validate({"url": "https://a", "tls": {"caFile": authority}})
    with messages.raises(SecretFileError, match=r"tls\.caFile"):
        connection.certificates()
    authority.write_text("one")
    first = connection.certificates()
    assert connection.certificates() == first
    authority.write_text("another")
    assert connection.certificates() != first
