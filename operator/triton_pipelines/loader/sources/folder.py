"""Read folders of the container: mounted ConfigMaps and claims, and mapped ``file://``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from triton_pipelines.loader.errors import SourceError
from triton_pipelines.loader.files import BLOCK
from triton_pipelines.loader.listing import ListedFile, SourceListing, folder
from triton_pipelines.loader.source import FileBody


class FolderSource:
    """Files below a folder."""

    def __init__(
        self, folder: Path, fence: Path | None, missing: str, *, is_linked: bool = False
    ) -> None:
        """Create the source.

        Args:
            folder: the folder.
            fence: the mount that no symbolic link may leave; ``None`` allows any link.
            missing: advice for a file that does not exist.
            is_linked: whether files are linked, because Triton mounts the same folder and nothing
                changes it.
        """
        self._folder, self._fence, self._missing = folder, fence, missing
        self._is_linked = is_linked

    def resolve(self) -> str | None:
        """Return ``None``: a folder has no revision; the digests of its files stand for it."""
        return None

    def list(self, place: str) -> SourceListing:
        """Return the file at ``place``, or everything below it.

        Links to files of the same volume count as those files.
        """
        path = self._folder / place
        self._fenced(path, place or str(path))
        if path.is_file():
            return SourceListing((ListedFile(path.name, path.stat().st_size),), single=True)
        if not path.is_dir():
            raise SourceError(
                f"no file or directory {place or path.name}; {self._missing}", missing=True
            )
        return folder(self._below(path))

    def _below(self, root: Path) -> Iterator[ListedFile]:
        def failed(error: OSError) -> None:
            raise SourceError(
                f"{error.filename} cannot be read: {error.strerror}",
                retryable=not isinstance(error, PermissionError),
            ) from error

        for at, folders, files in os.walk(root, onerror=failed):
            for name in list(folders):
                # The kubelet keeps the content of ConfigMaps and Secrets in folders named so, and
                # links to it.
                if name.startswith(".."):
                    folders.remove(name)
                elif (Path(at) / name).is_symlink():
                    raise SourceError(
                        f"{(Path(at) / name).relative_to(root)} is a link to a directory; "
                        "replace the link with a copy of the directory"
                    )
            for name in files:
                path = Path(at) / name
                if name.startswith(".."):
                    continue
                self._fenced(path, str(path.relative_to(root)))
                if not path.is_file():
                    raise SourceError(
                        f"{path.relative_to(root)} is neither a file nor a directory, or is "
                        "a broken link; remove that entry"
                    )
                yield ListedFile(str(path.relative_to(root)), path.stat().st_size)

    def _fenced(self, path: Path, name: str) -> None:
        if self._fence is not None and not path.resolve().is_relative_to(self._fence.resolve()):
            raise SourceError(
                f"{name} points outside its volume through a link or '..'; copy the file "
                "into the volume"
            )

    @contextmanager
    def open(
        self, name: str, *, offset: int = 0, validator: str | None = None
    ) -> Iterator[FileBody]:
        """Read ``name``, from ``offset`` if size and time stamp are unchanged."""
        path = self._folder / name
        self._fenced(path, name)
        try:
            file = path.open("rb")
        except (FileNotFoundError, NotADirectoryError):
            raise SourceError(f"no file {name}; {self._missing}", missing=True) from None
        except IsADirectoryError:
            raise SourceError(
                f"{name} is a directory; set source.path to the file", missing=True
            ) from None
        except PermissionError:
            raise SourceError(
                f"{name} is not readable by the pod's user; change its mode, or set an fsGroup"
            ) from None
        except OSError as error:
            raise SourceError(
                f"{name} cannot be opened: {error.strerror}", retryable=True
            ) from error
        with file:
            status = path.stat()
            current = f"{status.st_size}-{status.st_mtime_ns}"
            start = offset if validator == current and offset < status.st_size else 0
            file.seek(start)

            def chunks() -> Iterator[bytes]:
                try:
                    while block := file.read(BLOCK):
                        yield block
                except OSError as error:
                    raise SourceError(
                        f"{name} cannot be read: {error.strerror}", retryable=True
                    ) from error

            yield FileBody(
                chunks(),
                offset=start,
                size=status.st_size,
                validator=current,
                link=path.resolve() if self._is_linked else None,
            )
