"""Command line of the sample models.

Run ``python -m e2e.models build | export | serve | train | golden | verify``.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from e2e.local import native
from e2e.models import golden, sentiment, tree, verify

app = typer.Typer(
    help="Models of the samples, their training and their golden answers.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command()
def build(
    out: Annotated[
        Path | None, typer.Option(help="Folder to write; the cache when left out.")
    ] = None,
) -> None:
    """Write ONNX files and tokenizer as a tree that --source-map can point to.

    Prints the folder of the tree.
    """
    typer.echo(tree.build(out.resolve() if out else None))


@app.command()
def export() -> None:
    """Build what the samples need here, and print the shell command that lets it be found.

    That is the models and the built-in tokenizer, which ``tritonpipe`` finds in the package.
    """
    native.install()
    rules = ",".join(f"{prefix}={target}" for prefix, target in sources(tree.build()).items())
    typer.echo(f"export TRITONPIPE_SOURCE_MAP={shlex.quote(rules)}")


@app.command()
def train() -> None:
    """Train the sentiment heads again, write their files and print their accuracy."""
    for path, described in sentiment.HEADS.items():
        content = sentiment.train(described=described)
        sentiment.write_head(content, path)
        typer.echo(
            f"{path.name}: {content['trainAccuracy']:.1%} on {content['trainSentences']} training "
            f"sentences, "
            f"{content['heldoutAccuracy']:.1%} on {content['heldoutSentences']} held-out sentences"
        )


@app.command(name="golden")
def write_golden() -> None:
    """Compute the golden answers again and write their files."""
    for path in golden.write():
        typer.echo(path)


@app.command(name="verify")
def check() -> None:
    """Compute head and golden answers again and fail where the files in the checkout differ."""
    if findings := verify.findings():
        for finding in findings:
            typer.echo(finding, err=True)
        raise typer.Exit(1)
    typer.echo("sentiment heads and golden answers are up to date")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(help="A sample, such as manifests/samples/sentiment.yaml.")
    ],
) -> None:
    """Serve a sample on this machine with ``tritonpipe serve``.

    Its sources are mapped to the built tree. Further options are passed on.
    """
    native.install()
    command = Path(sys.executable).with_name("tritonpipe")
    os.execv(command, [str(command), "serve", str(file), *source_map(tree.build()), *context.args])


def sources(folder: Path) -> dict[str, str]:
    """Return where a built tree has the samples' sources, by prefix."""
    return {"hf://": f"{(folder / 'hub').as_uri()}/", "s3://": f"{(folder / 's3').as_uri()}/"}


def source_map(folder: Path) -> list[str]:
    """Options that map the samples' sources to a built tree."""
    return [f"--source-map={prefix}={target}" for prefix, target in sources(folder).items()]


def main() -> None:
    """Run the command line.

    A file that is missing or cannot be written, or a failed build, is reported without a traceback.
    """
    try:
        app()
    except (OSError, ValueError, native.NativeBuildError) as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
