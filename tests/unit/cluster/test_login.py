"""Credentials of the API server: the proxy of the environment is read once, and ~/.netrc never."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from triton_pipelines.cluster.login import load_configuration

HOST = "https://10.0.0.1:6443"


def _kubeconfig(folder: Path, **cluster: str) -> str:
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "one",
                "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
                "clusters": [{"name": "one", "cluster": {"server": HOST, **cluster}}],
                "users": [{"name": "one", "user": {"token": "secret"}}],
            }
        )
    )
    return str(path)


@pytest.mark.parametrize(
    ("variables", "proxy"),
    [
        ({}, None),
        ({"https_proxy": "http://user:pass@proxy:3128"}, "http://user:pass@proxy:3128"),
        ({"http_proxy": "http://proxy:3128"}, None),
        ({"https_proxy": "https://proxy:3128"}, None),
        ({"https_proxy": "http://proxy:3128", "no_proxy": "10.0.0.1"}, None),
        ({"https_proxy": "http://proxy:3128", "no_proxy": "10.0.0.2"}, "http://proxy:3128"),
    ],
)
def test_proxy_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], proxy: str | None
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    configuration = asyncio.run(load_configuration(_kubeconfig(tmp_path)))

    assert configuration.proxy == proxy
    assert configuration.client_session_kwargs == {"trust_env": False}


def test_proxy_of_the_kubeconfig_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    path = _kubeconfig(tmp_path, **{"proxy-url": "http://other:3128"})

    assert asyncio.run(load_configuration(path)).proxy == "http://other:3128"
