"""Parent control groups for a cluster's pods, on cgroup v1 and v2."""

import contextlib
import os
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
REMOVE_SECONDS = 10.0


def hierarchies(root: Path = ROOT) -> list[Path]:
    """Mount points that can hold pods' groups: the one of v2, or one per controller of v1."""
    if (root / "cgroup.controllers").exists():
        return [root]
    return [
        path
        for path in sorted(root.iterdir())
        if path.is_dir() and not path.is_symlink() and (path / "tasks").exists()
    ]


def create(name: str, root: Path = ROOT) -> None:
    """Make the group in every hierarchy, with all controllers on for its children."""
    unified = (root / "cgroup.controllers").exists()
    for hierarchy in hierarchies(root):
        group = hierarchy / name.lstrip("/")
        group.mkdir(exist_ok=True)
        if unified:
            for level in (hierarchy, group):
                for controller in (level / "cgroup.controllers").read_text().split():
                    # A controller that the machine reserves for itself stays off. Pods then miss
                    # only that limit.
                    with contextlib.suppress(OSError):
                        (level / "cgroup.subtree_control").write_text(f"+{controller}")
        for inherited in ("cpuset.cpus", "cpuset.mems"):
            # v1 groups start with no processors at all.
            if not unified and (group / inherited).exists():
                (group / inherited).write_text((hierarchy / inherited).read_text())


def remove(name: str, root: Path = ROOT) -> None:
    """Remove the group and all below it; waits for the last processes in it to be gone.

    Looks into every hierarchy there is: on a machine with both versions the container runtime also
    makes groups in v2.

    Raises:
        OSError: a group is still busy after `REMOVE_SECONDS`.
    """
    end = time.monotonic() + REMOVE_SECONDS
    places = [root, *(path for path in root.iterdir() if path.is_dir() and not path.is_symlink())]
    for place in places:
        group = place / name.lstrip("/")
        while group.exists():
            try:
                for folder, _, _ in os.walk(group, topdown=False):
                    Path(folder).rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
