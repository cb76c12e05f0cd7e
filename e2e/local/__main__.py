"""Command line of the local cluster: `python -m e2e.local --help`."""

import sys
from typing import Annotated

import typer
from rich.table import Table

from e2e.local import cluster as clusters
from e2e.local.api import NotReadyError
from e2e.local.binaries import BinaryError
from e2e.local.cluster import DEFAULT_GPUS, DEFAULT_NAME, Cluster
from e2e.local.images import OPERATOR_IMAGE, TRITON_IMAGE
from e2e.local.images.buildah import ImageError
from e2e.local.network import NetworkError
from e2e.local.packages import MachineError
from e2e.local.progress import console
from e2e.local.supervision import ClusterError

app = typer.Typer(
    help="A real single-node Kubernetes cluster on this machine, without Docker.",
    no_args_is_help=True,
    add_completion=False,
)
Name = Annotated[str, typer.Option("--name", help="Name of the cluster; several run side by side.")]


@app.command()
def up(
    name: Name = DEFAULT_NAME,
    gpus: Annotated[int, typer.Option(help="How many (fake) GPUs the node offers.")] = DEFAULT_GPUS,
    gpu_taint: Annotated[
        bool,
        typer.Option("--gpu-taint", help="Taint the node with nvidia.com/gpu=present:NoSchedule."),
    ] = False,
    images: Annotated[
        bool, typer.Option(help="Build and load the operator's and the test Triton's image.")
    ] = True,
) -> None:
    """Bring a cluster up, or bring a running one up to date."""
    cluster = Cluster(name)
    cluster.up(gpus=gpus, gpu_taint=gpu_taint, images=clusters.PRODUCT_IMAGES if images else ())
    console.print(f"cluster {name} is up; use it with:", markup=False, soft_wrap=True)
    print(f"export KUBECONFIG={cluster.kubeconfig}")


@app.command()
def down(
    name: Name = DEFAULT_NAME,
    every: Annotated[bool, typer.Option("--all", help="Remove every cluster.")] = False,
) -> None:
    """Remove a cluster and everything of it."""
    for item in clusters.names() if every else [name]:
        Cluster(item).down()
        console.print(f"cluster {item} is removed", markup=False, soft_wrap=True)


@app.command()
def status(
    name: Annotated[
        str | None, typer.Option("--name", help="Only this cluster; fails when it is not ready.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="As JSON documents.")] = False,
) -> None:
    """Show clusters and their components."""
    found = [Cluster(item).status() for item in ([name] if name else clusters.names())]
    if json:
        for entry in found:
            print(clusters.as_json(entry))
    else:
        table = Table("cluster", "running", "node", "GPUs", "server", "components (restarts)")
        for entry in found:
            parts = ", ".join(
                part if not ended else f"{part} ({ended})"
                for part, ended in sorted(entry.components.items())
            )
            node = "Ready" if entry.node_ready else "not ready"
            table.add_row(
                entry.name,
                "yes" if entry.running else "no",
                node,
                str(entry.gpus),
                entry.server,
                parts,
            )
        console.print(table)
    if name and not all(entry.node_ready for entry in found):
        raise typer.Exit(1)


@app.command()
def kubeconfig(name: Name = DEFAULT_NAME) -> None:
    """Print the path of the kubeconfig."""
    cluster = Cluster(name)
    cluster.supervisor.require_running()
    print(cluster.kubeconfig)


@app.command()
def gpus(count: int, name: Name = DEFAULT_NAME) -> None:
    """Change how many GPUs the running node offers."""
    Cluster(name).set_gpus(count)


@app.command("load-image")
def load_image(
    image: Annotated[
        str,
        typer.Argument(
            help=f"Archive file (docker save, OCI), or {OPERATOR_IMAGE} or {TRITON_IMAGE}."
        ),
    ],
    tag: Annotated[
        str, typer.Option(help="Also give this tag to an image of the project, for an upgrade.")
    ] = "",
    name: Name = DEFAULT_NAME,
) -> None:
    """Load an image into the node; the project's own are built first when their sources changed."""
    Cluster(name).load_image(image, tag)


def main() -> int:
    """Run the command line; a known failure is one message and exit code 1."""
    try:
        app()
    except (
        BinaryError,
        ClusterError,
        ImageError,
        MachineError,
        NetworkError,
        NotReadyError,
    ) as error:
        console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
