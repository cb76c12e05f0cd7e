"""Build the images from their Dockerfiles.

Each is kept as an archive whose name ends in the hash of its inputs.
"""

import os
import shutil
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from e2e.local import binaries, cache, native, packages
from e2e.local.images import OPERATOR_IMAGE, PAUSE_IMAGE, SAMPLES_IMAGE, TRITON_IMAGE
from e2e.local.progress import step

ROOT = Path(__file__).resolve().parents[3]
TRITON_FOLDER = Path(__file__).with_name("triton")
SAMPLES_FOLDER = Path(__file__).with_name("samples")
SAMPLES_SUPPORT = (
    "tests/__init__.py",
    "tests/support/__init__.py",
    "tests/support/hub.py",
    "tests/support/web.py",
)
"""Files of the tests that the server of the samples runs on."""

KEPT_ARCHIVES = 2
BASE_SUITE = "bookworm"
BASE_PACKAGES = ("ca-certificates", "libpython3.11", "python3", "python3-pip", "python3-venv")
BASE_TRIMMED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
BASE_FORGETS = "rm -f $1/etc/resolv.conf $1/etc/hostname"
"""mmdebstrap copies these from the machine that it runs on."""

PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
"""The pip settings that control how packages are downloaded.

Only these are passed to a build, and only for the duration of a step.
"""


class ImageError(RuntimeError):
    """An image could not be built; the message ends with the last lines of the build."""


def ensure(reference: str) -> Path:
    """The archive of one of this project's images, built if its inputs have changed.

    Raises:
        ImageError: an unknown image, or the build failed.
    """
    builders: Mapping[str, Callable[[], Path]] = {
        PAUSE_IMAGE: _pause,
        OPERATOR_IMAGE: _operator,
        TRITON_IMAGE: _triton,
        SAMPLES_IMAGE: _samples,
    }
    if reference not in builders:
        raise ImageError(f"no recipe for image {reference}; known are {', '.join(builders)}")
    return builders[reference]()


def operator_inputs(root: Path = ROOT) -> list[Path]:
    """Files that decide the operator image."""
    sources = [
        path
        for path in (root / "operator").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    sources = [
        path for path in sources if not any(part.endswith(".egg-info") for part in path.parts)
    ]
    fixed = (
        "Dockerfile",
        ".dockerignore",
        "pyproject.toml",
        "requirements/operator.txt",
        "requirements/build.txt",
    )
    return [*sources, *(root / name for name in fixed)]


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


def _pause() -> Path:
    binary = binaries.path_of("pause").resolve()
    files = {"pause": binary}
    recipe = 'FROM scratch\nCOPY pause /pause\nUSER 65535:65535\nENTRYPOINT ["/pause"]\n'
    return _archive(
        "pause",
        PAUSE_IMAGE,
        cache.digest([recipe, binary.read_bytes()]),
        lambda tag: _build_inline(recipe, files, tag),
    )


def _operator() -> Path:
    _native_tokenizer()
    base = _base()
    key = cache.digest([base, cache.digest_tree(ROOT, operator_inputs())])
    return _archive("operator", OPERATOR_IMAGE, key, lambda tag: _build(ROOT, tag, base))


def _native_tokenizer() -> None:
    """Put the native tokenizer into the package that the image installs, if Rust is there.

    Without it only pipelines that ask for the native tokenizer do not load.
    """
    try:
        native.install()
    except native.NativeBuildError as error:
        print(f"the operator image gets no native tokenizer: {error}", file=sys.stderr)


def _triton() -> Path:
    base = _base()
    key = cache.digest(
        [
            base,
            cache.digest_tree(
                TRITON_FOLDER, (path for path in TRITON_FOLDER.iterdir() if path.is_file())
            ),
        ]
    )
    return _archive(
        "tritonserver-cpu", TRITON_IMAGE, key, lambda tag: _build(TRITON_FOLDER, tag, base)
    )


def _samples() -> Path:
    from e2e.models import tree  # needs onnx, which nothing else of the local cluster does

    models = tree.build()
    base = _base()
    inputs = {
        "server.py": SAMPLES_FOLDER / "server.py",
        "Dockerfile": SAMPLES_FOLDER / "Dockerfile",
        **{name: ROOT / name for name in SAMPLES_SUPPORT},
    }
    key = cache.digest(
        [
            base,
            models.name,
            (models / tree.MANIFEST).read_bytes(),
            *(path.read_bytes() for path in inputs.values()),
        ]
    )

    def make(tag: str) -> None:
        with tempfile.TemporaryDirectory(dir=cache.cache_root()) as scratch:
            context = Path(scratch)
            shutil.copytree(models, context / "models", copy_function=os.link)
            for name, source in inputs.items():
                (context / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, context / name)
            _build(context, tag, base)

    return _archive("samples", SAMPLES_IMAGE, key, make)


def _base() -> str:
    """Return the reference (in buildah's store) of the Debian base image.

    The image has Python where the Dockerfiles expect it.
    """
    options = [
        "--variant=minbase",
        f"--include={','.join(BASE_PACKAGES)}",
        *(f"--dpkgopt=path-exclude={path}" for path in BASE_TRIMMED),
    ]
    options.append(f"--customize-hook={BASE_FORGETS}")
    recipe = "FROM scratch\nADD base.tar /\n"
    key = cache.digest([*options, BASE_SUITE, recipe])
    tag = f"localhost/triton-pipelines/base:{key}"
    archive = cache.cache_root() / f"image-base-{key}.tar"
    with cache.locked(archive):
        if not archive.exists():
            with (
                step("making the base image from Debian packages"),
                tempfile.TemporaryDirectory(dir=archive.parent) as scratch,
            ):
                made = Path(scratch) / "base.tar"
                _run(["nice", "mmdebstrap", "--quiet", *options, BASE_SUITE, str(made)])
                made.replace(archive)
        if not _known(tag):
            _build_inline(recipe, {"base.tar": archive}, tag)
    return tag


def _archive(name: str, reference: str, key: str, make: Callable[[str], None]) -> Path:
    """Path of the image's archive; `make` builds it under the tag it is given."""
    target = cache.cache_root() / f"image-{name}-{key}.tar"
    if target.exists():
        return target
    with cache.locked(target.with_name(f"image-{name}")):
        if target.exists():
            return target
        with (
            step(f"building image {reference}"),
            tempfile.TemporaryDirectory(dir=target.parent) as scratch,
        ):
            tag = f"localhost/triton-pipelines/{name}:{key}"
            make(tag)
            made = Path(scratch) / "image.tar"
            # Uncompressed: it lives on the disk that it is read from, and decompression would cost
            # more than reading.
            _buildah("push", "--quiet", tag, f"docker-archive:{made}:{reference}")
            made.replace(target)
        others = [path for path in target.parent.glob(f"image-{name}-*.tar") if path != target]
        for old in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[
            KEPT_ARCHIVES - 1 :
        ]:
            old.unlink(missing_ok=True)
            # Its layers too, but for those that newer images share.
            if _known(
                old_tag := f"localhost/triton-pipelines/{name}:{old.stem.rpartition('-')[2]}"
            ):
                _run([*_buildah_command(), "rmi", old_tag])
    return target


def _build_inline(recipe: str, files: Mapping[str, Path], tag: str) -> None:
    with tempfile.TemporaryDirectory(dir=cache.cache_root()) as scratch:
        context = Path(scratch)
        (context / "Dockerfile").write_text(recipe)
        for name, source in files.items():
            (context / name).hardlink_to(source)
        _buildah("build", "--quiet", "--tag", tag, str(context))


def _build(context: Path, tag: str, base: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        secrets = []
        for name, text in (("pip-config", pip_secret(_pip_listing())), ("ca-bundle", _ca_bundle())):
            (Path(scratch) / name).write_text(text)
            secrets.append(f"--secret=id={name},src={Path(scratch) / name}")
        _buildah(
            "build",
            "--isolation=chroot",
            "--network=host",
            "--layers",
            "--pull=never",
            f"--build-arg=BASE_IMAGE={base}",
            # The library in the package: a build inside the image would need an image with Rust.
            *(["--build-arg=NATIVE=prebuilt"] if context == ROOT else []),
            *secrets,
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


def _known(tag: str) -> bool:
    done = subprocess.run(
        [*_buildah_command(), "inspect", "--type=image", tag], capture_output=True, check=False
    )
    return done.returncode == 0


def _buildah_command() -> list[str]:
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


def _buildah(command: str, *arguments: str) -> None:
    store = cache.cache_root() / "buildah"
    store.mkdir(parents=True, exist_ok=True)
    policy = store / "policy.json"
    if not policy.exists():
        policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}\n')
    _run([*_buildah_command(), command, "--signature-policy", str(policy), *arguments])


def _run(command: Sequence[str]) -> None:
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
