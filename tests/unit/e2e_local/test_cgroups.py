"""Control groups on imitations of both layouts."""

from pathlib import Path

from e2e.local import cgroups


def version1(root: Path) -> Path:
    for controller in ("cpu", "cpuset", "memory"):
        (root / controller).mkdir()
        (root / controller / "tasks").touch()
    (root / "cpuset" / "cpuset.cpus").write_text("0-1")
    (root / "cpu,cpuacct").symlink_to("cpu")
    (root / "unified").mkdir()
    (root / "unified" / "cgroup.controllers").touch()
    return root


def test_version_1_has_a_group_per_controller(tmp_path: Path) -> None:
    root = version1(tmp_path)
    cgroups.create("/group", root)
    assert sorted(
        str(path.parent.name) for path in root.glob("*/group") if not path.parent.is_symlink()
    ) == ["cpu", "cpuset", "memory"]


def test_version_2_has_one_with_all_controllers_on(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    assert cgroups.hierarchies(tmp_path) == [tmp_path]


def test_removal_reaches_what_the_runtime_made_elsewhere(tmp_path: Path) -> None:
    root = version1(tmp_path)
    cgroups.create("/group", root)
    (root / "unified" / "group" / "kubepods" / "pod").mkdir(parents=True)
    cgroups.remove("/group", root)
    cgroups.remove("/group", root)
    assert list(root.glob("*/group")) == []
