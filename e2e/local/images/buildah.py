"""Run buildah with a store of its own inside the cache, without a daemon."""

import os
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.local import cache, packages

BUILD_PLATFORM = "linux/amd64"
PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
"""The pip settings that control how packages are downloaded.

Only these are passed to a build, and only for the duration of a step.
"""


class ImageError(RuntimeError):
    """An image could not be built; the message ends with the last lines of the build."""


def pip_secret(listing: str) -> str:
    """Return a pip configuration with the settings that are needed to reach the package index.

    `listing` is the output of `pip config list`.

    Environment variables win over files, as in pip; certificates travel on their own, local folders
    not at all.
    """
    values: dict[str, str] = {}
    for line in sorted(listing.splitlines(), key=lambda text: text.startswith(":env:")):
        name, _, value = line.partition("=")
        key = name.rpartition(".")[2].removeprefix("default-")
        if key in PIP_SETTINGS and name.split(".")[0] in {"global", "install", ":env:"}:
            values[key] = value.strip("'\"").replace("\\n", "\n")
    return "\n".join(["[global]", *(f"{key} = {value}" for key, value in values.items()), ""])


def build_inline(recipe: str, files: Mapping[str, Path], tag: str, *arguments: str) -> None:
    """Build an image from a Dockerfile's text and its files, which are on the cache's disk."""
    with tempfile.TemporaryDirectory(dir=cache.cache_root()) as scratch:
        context = Path(scratch)
        (context / "Dockerfile").write_text(recipe)
        for name, source in files.items():
            (context / name).hardlink_to(source)
        run("build", "--quiet", *arguments, "--tag", tag, str(context))


def build(context: Path, tag: str, base: str, *arguments: str, pull: str = "never") -> None:
    """Build the Dockerfile of a folder.

    Args:
        context: the folder.
        tag: name of the image in the store.
        base: build argument `BASE_IMAGE`.
        arguments: further arguments of `buildah build`.
        pull: when base images are pulled.

    Raises:
        ImageError: the build failed; the message ends with its last lines.
    """
    with tempfile.TemporaryDirectory() as scratch:
        secrets = []
        for name, text in (("pip-config", pip_secret(_pip_listing())), ("ca-bundle", _ca_bundle())):
            (Path(scratch) / name).write_text(text)
            secrets.append(f"--secret=id={name},src={Path(scratch) / name}")
        run(
            "build",
            "--isolation=chroot",
            "--network=host",
            "--layers",
            f"--pull={pull}",
            # Debian's buildah does not set this argument itself.
            f"--build-arg=BUILDPLATFORM={BUILD_PLATFORM}",
            f"--build-arg=BASE_IMAGE={base}",
            *secrets,
            *arguments,
            "--tag",
            tag,
            str(context),
        )


def _pip_listing() -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode == 0 else ""


def _ca_bundle() -> str:
    """The machine's trusted certificates, which pip inside a build is to trust as well."""
    for candidate in (
        os.environ.get("PIP_CERT"),
        os.environ.get("SSL_CERT_FILE"),
        ssl.get_default_verify_paths().cafile,
    ):
        if candidate and Path(candidate).is_file():
            return Path(candidate).read_text()
    system = Path("/etc/ssl/certs/ca-certificates.crt")
    return system.read_text() if system.exists() else ""


def known(tag: str) -> bool:
    """Return whether the store has an image."""
    done = subprocess.run(
        [*command_line(), "inspect", "--type=image", tag], capture_output=True, check=False
    )
    return done.returncode == 0


def command_line() -> list[str]:
    """Return the command line of buildah with its own store inside the cache."""
    store = cache.cache_root() / "buildah"
    return [
        "nice",
        "buildah",
        "--root",
        str(store / "root"),
        "--runroot",
        str(store / "run"),
        "--storage-driver",
        "overlay",
    ]


def run(command: str, *arguments: str) -> None:
    """Run a buildah command that copies or makes images.

    Raises:
        ImageError: it failed; the message ends with its last lines.
    """
    execute([*command_line(), command, "--signature-policy", _policy(), *arguments])


def push_all(listing: str, destination: str) -> None:
    """Copy a manifest list with all its images.

    Raises:
        ImageError: it failed; the message ends with its last lines.
    """
    options = ["--signature-policy", _policy(), "--all", "--quiet"]
    execute([*command_line(), "manifest", "push", *options, listing, destination])


def _policy() -> str:
    policy = cache.cache_root() / "buildah" / "policy.json"
    if not policy.exists():
        policy.parent.mkdir(parents=True, exist_ok=True)
        policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}\n')
    return str(policy)


def execute(command: Sequence[str]) -> None:
    """Run a program that makes (part of) an image; raise `ImageError` if it fails."""
    # Python in an image keeps no bytecode in folders of this machine.
    env = {**os.environ, "PATH": packages.search_path(), "PYTHONDONTWRITEBYTECODE": "1"}
    env.pop("PYTHONPYCACHEPREFIX", None)
    done = subprocess.run(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-25:])
        raise ImageError(
            f"`{' '.join(command[:6])} …` ended with exit code {done.returncode}:\n{tail}"
        )
