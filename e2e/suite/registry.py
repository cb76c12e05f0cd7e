"""A private registry on the node of a local cluster, and images of model files in it."""

import base64
import contextlib
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from e2e.local import binaries, cache
from e2e.local.cluster import Cluster
from e2e.local.images import buildah
from e2e.suite.kube import Object, wait_for

COMPONENT = "registry"
PORT = 5000
HOST = f"127.0.0.1:{PORT}"
"""What images are named after: containerd speaks plain HTTP to the node's own address alone."""
TAG = "v1"
SECRET = "registry-reader"
READY_SECONDS = 30.0
USER = "ada"
PASSWORD = "s3cret-pass/word+9f00"
HTPASSWD = f"{USER}:$2b$04$abcdefghijklmnopqrstuuVRRwC/dQmRKXXPmQMjhrfE5FM.63NwK\n"
"""bcrypt of that password."""


@dataclass(frozen=True)
class Registry:
    """A registry that serves only who knows the password.

    Args:
        cluster: the cluster on whose node it runs.
    """

    cluster: Cluster

    def push(self, repository: str, files: Mapping[str, Path]) -> str:
        """Build an image of files, by their paths in it, and push it; returns its reference.

        Every image has a digest of its own, also with the same files.
        """
        scratch = cache.cache_root() / f"e2e-{uuid.uuid4().hex[:8]}"
        tag = f"localhost/triton-pipelines/e2e-model:{scratch.name}"
        sources = {f"file{index}": path for index, path in enumerate(files.values())}
        copies = [f"COPY {source} /{target}" for source, target in zip(sources, files, strict=True)]
        recipe = "\n".join(["FROM scratch", f"LABEL build={scratch.name}", *copies, ""])
        digest = scratch.with_suffix(".digest")
        try:
            buildah.build_inline(recipe, sources, tag)
            buildah.run(
                "push",
                "--quiet",
                "--tls-verify=false",
                f"--creds={USER}:{PASSWORD}",
                f"--digestfile={digest}",
                tag,
                f"docker://{self._address}/{repository}:{TAG}",
            )
            return f"{HOST}/{repository}:{TAG}@{digest.read_text().strip()}"
        finally:
            digest.unlink(missing_ok=True)
            if buildah.known(tag):
                buildah.execute([*buildah.command_line(), "rmi", tag])

    @property
    def secret(self) -> Object:
        """The Secret for `imagePullSecrets`."""
        auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        content = json.dumps({"auths": {HOST: {"auth": auth}}})
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SECRET},
            "type": "kubernetes.io/dockerconfigjson",
            "data": {".dockerconfigjson": base64.b64encode(content.encode()).decode()},
        }

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop it for the duration of the context."""
        self.cluster.supervisor.stop(COMPONENT)
        try:
            yield
        finally:
            self.cluster.supervisor.start(COMPONENT)
            self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until it asks for the password."""

        def status() -> int:
            try:
                return httpx.get(f"http://{self._address}/v2/", trust_env=False).status_code
            except httpx.HTTPError as error:
                raise OSError(str(error)) from error

        wait_for("registry", status, lambda code: code == httpx.codes.UNAUTHORIZED, READY_SECONDS)

    @property
    def _address(self) -> str:
        return f"{self.cluster.subnets.node_address}:{PORT}"


@contextlib.contextmanager
def running(cluster: Cluster) -> Iterator[Registry]:
    """Run a registry on the cluster's node."""
    folder = cluster.state / COMPONENT
    folder.mkdir(exist_ok=True)
    (folder / "htpasswd").write_text(HTPASSWD)
    config = {
        "version": "0.1",
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": f"0.0.0.0:{PORT}"},
        "auth": {"htpasswd": {"realm": COMPONENT, "path": str(folder / "htpasswd")}},
    }
    # The configuration is YAML, of which JSON is a part.
    (folder / "config.yml").write_text(json.dumps(config))
    program = str(binaries.path_of("registry"))
    cluster.supervisor.add(
        COMPONENT,
        ["env", "OTEL_TRACES_EXPORTER=none", program, "serve", str(folder / "config.yml")],
    )
    cluster.supervisor.rescan()
    made = Registry(cluster)
    made.wait_ready()
    yield made
    cluster.supervisor.stop(COMPONENT)
