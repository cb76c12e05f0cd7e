"""Build the images from their Dockerfiles.

Each is kept as an archive whose name ends in the hash of its inputs.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from e2e.local import binaries, cache, native
from e2e.local.images import (
    OPERATOR_IMAGE,
    PAUSE_IMAGE,
    SAMPLES_IMAGE,
    TRITON_IMAGE,
    buildah,
)
from e2e.local.images.buildah import ImageError
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

PACKAGED_NATIVE = "--build-arg=NATIVE=package"
"""Lets the operator image take the built-in tokenizer from the package instead of building it."""

KEPT_ARCHIVES = 2
BASE_SUITE = "bookworm"
BASE_PACKAGES = ("ca-certificates", "libpython3.11", "python3", "python3-pip", "python3-venv")
BASE_TRIMMED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
BASE_FORGETS = "rm -f $1/etc/resolv.conf $1/etc/hostname"
"""mmdebstrap copies these from the machine that it runs on."""


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
        "requirements/native.txt",
    )
    return [*sources, *(root / name for name in fixed)]


def _pause() -> Path:
    binary = binaries.path_of("pause").resolve()
    files = {"pause": binary}
    recipe = 'FROM scratch\nCOPY pause /pause\nUSER 65535:65535\nENTRYPOINT ["/pause"]\n'
    return _archive(
        "pause",
        PAUSE_IMAGE,
        cache.digest([recipe, binary.read_bytes()]),
        lambda tag: buildah.build_inline(recipe, files, tag),
    )


def _operator() -> Path:
    _native_tokenizer()
    base = base_image()
    key = cache.digest([base, cache.digest_tree(ROOT, operator_inputs())])
    return _archive(
        "operator",
        OPERATOR_IMAGE,
        key,
        lambda tag: buildah.build(ROOT, tag, base, PACKAGED_NATIVE),
    )


def _native_tokenizer() -> None:
    """Put the built-in tokenizer into the package of the image.

    Raises:
        ImageError: It cannot be built.
    """
    try:
        native.install()
    except native.NativeBuildError as error:
        raise ImageError(f"the operator image needs the built-in tokenizer: {error}") from error


def _triton() -> Path:
    base = base_image()
    key = cache.digest(
        [
            base,
            cache.digest_tree(
                TRITON_FOLDER, (path for path in TRITON_FOLDER.iterdir() if path.is_file())
            ),
        ]
    )
    return _archive(
        "tritonserver-cpu", TRITON_IMAGE, key, lambda tag: buildah.build(TRITON_FOLDER, tag, base)
    )


def samples_context(context: Path) -> None:
    """Put everything into a folder that the image of the samples is built from."""
    from e2e.models import tree  # needs onnx, which nothing else of the local cluster does

    shutil.copytree(tree.build(), context / "models", copy_function=_link)
    for name, source in _samples_inputs().items():
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, context / name)


def _link(source: str, target: str) -> None:
    """Link a file, or copy it to another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _samples_inputs() -> dict[str, Path]:
    return {
        "server.py": SAMPLES_FOLDER / "server.py",
        "Dockerfile": SAMPLES_FOLDER / "Dockerfile",
        **{name: ROOT / name for name in SAMPLES_SUPPORT},
    }


def _samples() -> Path:
    from e2e.models import tree  # needs onnx, which nothing else of the local cluster does

    models = tree.build()
    base = base_image()
    key = cache.digest(
        [
            base,
            models.name,
            (models / tree.MANIFEST).read_bytes(),
            *(path.read_bytes() for path in _samples_inputs().values()),
        ]
    )

    def make(tag: str) -> None:
        with tempfile.TemporaryDirectory(dir=cache.cache_root()) as scratch:
            samples_context(Path(scratch))
            buildah.build(Path(scratch), tag, base)

    return _archive("samples", SAMPLES_IMAGE, key, make)


def base_image(architecture: str = "amd64") -> str:
    """Return the reference (in buildah's store) of the Debian base image.

    The image has Python where the Dockerfiles expect it. For another architecture than this
    machine's, no package is configured, because that would need emulation: the image has the files
    of all packages, but not those that their installation scripts make.

    Raises:
        ImageError: the image could not be built.
    """
    foreign = architecture != "amd64"
    options = [
        "--variant=extract" if foreign else "--variant=minbase",
        f"--include={','.join(BASE_PACKAGES)}",
        *(f"--dpkgopt=path-exclude={path}" for path in BASE_TRIMMED),
    ]
    if foreign:
        options.append(f"--architectures={architecture}")
    options.append(f"--customize-hook={BASE_FORGETS}")
    recipe = "FROM scratch\nADD base.tar /\n"
    key = cache.digest([*options, BASE_SUITE, recipe])
    tag = f"localhost/triton-pipelines/base:{key}"
    archive = cache.cache_root() / f"image-base-{key}.tar"
    with cache.locked(archive):
        if not archive.exists():
            with (
                step(f"making the base image for {architecture} from Debian packages"),
                tempfile.TemporaryDirectory(dir=archive.parent) as scratch,
            ):
                made = Path(scratch) / "base.tar"
                buildah.execute(["nice", "mmdebstrap", "--quiet", *options, BASE_SUITE, str(made)])
                made.replace(archive)
        if not buildah.known(tag):
            platform = [f"--platform=linux/{architecture}"] if foreign else []
            buildah.build_inline(recipe, {"base.tar": archive}, tag, *platform)
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
            buildah.run("push", "--quiet", tag, f"docker-archive:{made}:{reference}")
            made.replace(target)
        others = [path for path in target.parent.glob(f"image-{name}-*.tar") if path != target]
        for old in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[
            KEPT_ARCHIVES - 1 :
        ]:
            old.unlink(missing_ok=True)
            # Its layers too, but for those that newer images share.
            if buildah.known(
                old_tag := f"localhost/triton-pipelines/{name}:{old.stem.rpartition('-')[2]}"
            ):
                buildah.execute([*buildah.command_line(), "rmi", old_tag])
    return target
