"""hf:// sources through huggingface_hub against the stand-in of the hub's API."""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from e2e.local.pki import Authority
from tests.integration.loader.conftest import Pod
from tests.support.hub import HubServer
from tests.support.web import LoopbackServer, Request, Response
from triton_pipelines.api.loadplan import FetchKind, LoadReason, PlanFetch

pytestmark = pytest.mark.integration

TOKEN = "s3cret-token-41d8"
REPO = "example/minilm"


def tokenizer(uri: str = f"hf://{REPO}", **rest: object) -> PlanFetch:
    return PlanFetch(
        step="tokenizer",
        uri=uri,
        kind=FetchKind.TOKENIZER,
        target="tokenizer/1/tokenizer.json",
        **rest,
    )  # type: ignore[arg-type]


def files(minilm: Path, *names: str) -> dict[str, bytes]:
    return {name: (minilm / name).read_bytes() for name in names}


def asked(hub: HubServer) -> list[str]:
    return [urlsplit(request.path).path for request in hub.requests]


def test_only_what_is_needed_is_fetched_at_one_commit(pod: Pod, minilm: Path) -> None:
    with HubServer() as hub:
        commit = hub.publish(
            REPO,
            {
                **files(minilm, "tokenizer.json", "vocab.txt", "tokenizer_config.json"),
                "model.safetensors": b"big",
            },
        )
        pod.map(f"hf://={hub.url}")
        pod.plan(tokenizer())
        code, report = pod.load()
        assert code == 0, pod.output
        assert asked(hub) == [f"/api/models/{REPO}", f"/{REPO}/resolve/{commit}/tokenizer.json"]
    assert (pod.models / "tokenizer/1/tokenizer.json").read_bytes() == (
        minilm / "tokenizer.json"
    ).read_bytes()
    assert report.sources[0].resolved_revision == commit
    assert (
        report.sources[0].sha256
        == hashlib.sha256((minilm / "tokenizer.json").read_bytes()).hexdigest()
    )


def test_a_vocabulary_only_repository(pod: Pod, minilm: Path) -> None:
    with HubServer() as hub:
        hub.publish(
            REPO,
            files(
                minilm, "vocab.txt", "tokenizer_config.json", "special_tokens_map.json", "README.md"
            ),
        )
        pod.map(f"hf://={hub.url}")
        pod.plan(tokenizer())
        code, _ = pod.load()
        assert code == 0, pod.output
        assert sorted(path.rpartition("/")[2] for path in asked(hub)[1:]) == [
            "special_tokens_map.json",
            "tokenizer_config.json",
            "vocab.txt",
        ]


@pytest.mark.proves("spec.source.revision", "behaviour")
@pytest.mark.parametrize("how", ["uri", "revision"])
def test_a_branch_resolves_to_its_commit(pod: Pod, minilm: Path, how: str) -> None:
    with HubServer() as hub:
        hub.publish(REPO, {"tokenizer.json": b"main"})
        commit = hub.publish(REPO, files(minilm, "tokenizer.json"), branch="refs/pr/1")
        pod.plan(
            tokenizer(f"hf://{REPO}@refs/pr/1") if how == "uri" else tokenizer(revision="refs/pr/1")
        )
        pod.map(f"hf://={hub.url}")
        code, report = pod.load()
    assert (code, report.sources[0].resolved_revision) == (0, commit), pod.output
    assert report.sources[0].uri == f"hf://{REPO}" + ("@refs/pr/1" if how == "uri" else "")


def test_later_pods_fetch_the_commit_of_the_first_although_the_branch_moved(
    pod: Pod, minilm: Path
) -> None:
    with HubServer() as hub:
        first = hub.publish(REPO, files(minilm, "tokenizer.json"))
        hub.publish(REPO, {"tokenizer.json": b"moved on"})
        pod.map(f"hf://={hub.url}")
        pod.plan(tokenizer())
        pod.resolved("tokenizer", first, None)
        code, report = pod.load()
        assert (code, report.sources[0].resolved_revision) == (0, first), pod.output


def test_a_commit_that_is_gone_is_a_changed_source(pod: Pod, minilm: Path) -> None:
    with HubServer() as hub:
        first = hub.publish(REPO, files(minilm, "tokenizer.json"))
        hub.publish(REPO, {**files(minilm, "tokenizer.json"), "x": b""})
        hub.forget(REPO, first)
        pod.map(f"hf://={hub.url}")
        pod.plan(tokenizer())
        pod.resolved("tokenizer", first, None)
        code, report = pod.load()
    assert (code, report.findings[0].reason) == (2, LoadReason.SOURCE_CHANGED)
    assert first in report.findings[0].message
    assert "gone" in report.findings[0].message


@pytest.mark.proves("spec.source.secretRef.name", "behaviour")
def test_a_token_goes_to_the_hub_and_not_to_its_cdn(pod: Pod, minilm: Path) -> None:
    with HubServer(token=TOKEN, cdn=True) as hub:
        hub.publish(REPO, files(minilm, "tokenizer.json"))
        pod.map(f"hf://={hub.url}")
        pod.plan(tokenizer(credentials=True))
        pod.secret("tokenizer", token=TOKEN)
        code, _ = pod.load()
        assert code == 0, pod.output
        assert {request.headers.get("authorization") for request in hub.requests} == {
            f"Bearer {TOKEN}"
        }
        assert hub.cdn is not None
        assert ["authorization" in request.headers for request in hub.cdn.requests] == [False]
    assert "cdn-signature" not in pod.output


def test_a_token_of_the_environment_is_not_presented(
    pod: Pod, minilm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with HubServer() as hub:
        hub.publish(REPO, files(minilm, "tokenizer.json"))
        pod.map(f"hf://={hub.url}")
        pod.plan(tokenizer())
        assert pod.load()[0] == 0, pod.output
        assert ["authorization" in request.headers for request in hub.requests] == [False, False]


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("no such repository", "the hub has no accessible repository example/minilm"),
        ("no such revision", "has no revision v9"),
        ("gated", "is gated; accept its terms"),
        ("private", "set source.secretRef if it is private"),
        ("no such file", "no file onnx/model.onnx at "),
    ],
)
def test_refusals_of_the_hub_are_final_and_clear(pod: Pod, case: str, says: str) -> None:
    with HubServer(token=TOKEN if case == "private" else None) as hub:
        if case != "no such repository":
            hub.publish(REPO, {"a.txt": b"a"})
        if case == "gated":
            hub.gated.add(REPO)
        pod.map(f"hf://={hub.url}")
        if case == "no such file":
            pod.plan(
                PlanFetch(
                    step="model",
                    uri=f"hf://{REPO}",
                    path="onnx/model.onnx",
                    target="model/1/model.onnx",
                )
            )
        else:
            pod.plan(tokenizer(revision="v9" if case == "no such revision" else None))
        code, report = pod.load()
    assert (code, report.findings[0].reason) == (2, LoadReason.SOURCE_UNAVAILABLE)
    assert says in report.findings[0].message


@pytest.mark.proves("spec.source.uri", "behaviour")
def test_a_file_of_a_repository_by_its_uri(pod: Pod) -> None:
    with HubServer() as hub:
        hub.publish(REPO, {"deep/net.bin": b"weights"})
        pod.map(f"hf://={hub.url}")
        pod.plan(
            PlanFetch(step="model", uri=f"hf://{REPO}/deep/net.bin", target="model/1/model.plan")
        )
        code, _ = pod.load()
    assert code == 0, pod.output
    assert (pod.models / "model/1/model.plan").read_bytes() == b"weights"


def test_a_hub_that_stumbles_is_asked_again(pod: Pod) -> None:
    with HubServer() as hub:
        hub.publish(REPO, {"model.plan": b"weights"})
        answers = [Response(503), Response(500)]
        with LoopbackServer(
            lambda request: answers.pop(0) if answers else hub.answer(request)
        ) as stumbling:
            # endpoint of the resource, not of a source map
            pod.plan(
                PlanFetch(
                    step="model",
                    uri=f"hf://{REPO}",
                    endpoint=stumbling.url,
                    target="model/1/model.plan",
                )
            )
            code, _ = pod.load()
    assert code == 0, pod.output
    assert "attempt 2 failed" in pod.output
    assert "the hub returned 503" in pod.output


@pytest.mark.proves("spec.source.caRef.name", "behaviour")
def test_a_hub_with_a_ca_of_its_own(pod: Pod, tls: ssl.SSLContext, authority: Authority) -> None:
    with HubServer() as hub:
        hub.publish(REPO, {"model.plan": b"weights"})

        def answer(request: Request) -> Response:
            return hub.answer(request)

        with LoopbackServer(answer, tls) as mirror:
            pod.map(f"hf://={mirror.url}")
            pod.plan(PlanFetch(step="model", uri=f"hf://{REPO}", target="model/1/model.plan"))
            code, report = pod.load()
            assert code == 2
            assert "set its CA in source.caRef" in report.findings[0].message
            pod.trust("model", authority.identity)
            pod.plan(
                PlanFetch(step="model", uri=f"hf://{REPO}", target="model/1/model.plan", ca=True)
            )
            code, _ = pod.load()
            assert code == 0, pod.output


def test_a_folder_tree_is_served_as_repositories(pod: Pod, tmp_path: Path, minilm: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "example" / "minilm" / "onnx").mkdir(parents=True)
    (tree / "example" / "minilm" / "onnx" / "model.bin").write_bytes(b"graph")
    with HubServer(tree) as hub:
        pod.map(f"hf://={hub.url}")
        pod.plan(
            PlanFetch(
                step="model", uri=f"hf://{REPO}", path="onnx/model.bin", target="model/1/model.bin"
            )
        )
        code, _ = pod.load()
    assert code == 0, pod.output
    assert (pod.models / "model/1/model.bin").read_bytes() == b"graph"
