"""What a mounted secret becomes, and that every part of it is masked from then on."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.messages import Messages
from triton_pipelines.api.loadplan import PlanFetch
from triton_pipelines.loader.credentials import SourceCredentials, read_credentials
from triton_pipelines.loader.errors import SourceError
from triton_pipelines.loader.uris import SourceLocation
from triton_pipelines.redaction import Redactor

LINE = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7"
PEM = f"-----BEGIN PRIVATE KEY-----\n{LINE}\n-----END PRIVATE KEY-----\n"


def read(folder: Path, uri: str, redact: Redactor, **values: str) -> SourceCredentials:
    mounted = folder / "model.extra"
    mounted.mkdir(exist_ok=True)
    for key, value in values.items():
        (mounted / key).write_text(value)
    item = PlanFetch(step="model", slot="extra", uri=uri, target="m/1/x", credentials=True)
    return read_credentials(item, SourceLocation(uri), folder, folder, redact)


def test_every_part_of_a_service_accounts_key_is_masked(tmp_path: Path) -> None:
    redact = Redactor()
    key = json.dumps({"private_key": PEM, "private_key_id": "0123abcd", "client_email": "a@b"})
    assert read(tmp_path, "gs://b/k", redact, serviceAccountKey=key).service_account == key
    for part in (key, PEM, LINE, "0123abcd", json.dumps(PEM)):
        assert part not in redact(f"it failed: {part} was refused")


def test_the_signature_of_a_shared_access_signature_is_masked_alone(tmp_path: Path) -> None:
    redact = Redactor()
    signature = "a+b/c4d5e6f7=="
    token = f"sv=2018-11-09&sp=r&sig={quote(signature, safe='')}"
    made = read(tmp_path, "az://account/c/k", redact, sasToken=f"?{token}\n")
    assert made.sas_token == token
    assert "a+b" not in redact(f"signed with {signature}")
    assert "a%2Bb" not in redact(f"signed with {quote(signature, safe='')}")


def test_a_proxys_password_is_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    redact = Redactor()
    for name in (
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
    ):
        monkeypatch.setenv(name, f"http://ada:pass%2Fof-{name}@proxy:3128")
    read_credentials(
        PlanFetch(step="m", uri="https://a/b", target="m/1/x"),
        SourceLocation("https://a/b"),
        tmp_path,
        tmp_path,
        redact,
    )
    for name in ("HTTP_PROXY", "https_proxy", "ALL_PROXY"):
        assert f"of-{name}" not in redact(f"pass/of-{name} and pass%2Fof-{name}")


def test_the_kubelets_choice_among_a_docker_configuration(tmp_path: Path) -> None:
    def auth(user: str) -> dict[str, str]:
        return {"auth": base64.b64encode(f"{user}:of-{user}".encode()).decode()}

    config = {
        "registry.example": auth("all"),
        "registry.example/models": auth("models"),
        "https://index.docker.io/v1/": auth("hub"),
        "x": auth("x"),
    }
    for uri, user in (
        ("oci://registry.example/models/bert", "models"),
        ("oci://registry.example/models", "models"),
        ("oci://registry.example/models2/bert", "all"),
        ("oci://docker.io/library/bert", "hub"),
    ):
        redact = Redactor()
        made = read(tmp_path, uri, redact, **{".dockerconfigjson": json.dumps({"auths": config})})
        assert made.user == (user, f"of-{user}")
        assert f"of-{user}" not in redact(f"password of-{user}")
        assert auth(user)["auth"] not in redact(auth(user)["auth"])


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ('{"auths": {"r.example": {"auth": "!!"}}}', r"r\.example"),
        (
            '{"auths": {"r.example": {"identitytoken": "x"}}}',
            r"r\.example",
        ),
        ('{"auths": []}', "has no auths"),
        ("[]", "JSON"),
    ],
)
def test_a_docker_configuration_that_cannot_be_used(
    tmp_path: Path, config: str, says: str, messages: Messages
) -> None:
    with messages.raises(SourceError, match=says):
        read(tmp_path, "oci://r.example/models/bert", Redactor(), **{".dockerconfigjson": config})


def test_no_credential_shows_in_a_repr() -> None:
    held = SourceCredentials(
        token="t0ken",
        user=("u", "passw0rd"),
        keys=("a", "s3cret", None),
        account_key="k3y",
        sas_token="s4s",
        service_account="j50n",
    )
    for secret in ("t0ken", "passw0rd", "s3cret", "k3y", "s4s", "j50n"):
        assert secret not in repr(held)
