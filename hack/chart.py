"""Generate the parts of the chart and the kustomize manifests that follow from other files.

`python -m hack.chart` writes them. `python -m hack.chart --check` only reports differences (exit
code 1). Generated are:

- `charts/…/templates/crds/` from `crds/`. Helm never upgrades a chart's own `crds/` folder, so CRDs
  are templates that a value enables.
- descriptions in `values.schema.json` and the table of values in `README.md` from the comments of
  `values.yaml`.
- `manifests/gitops/argocd-cm.yaml` from the Lua script next to it.
- `manifests/base/operator.yaml`, `manifests/overlays/namespaced/roles.yaml` and
  `manifests/monitoring/monitoring.yaml` from the chart, so that both ways install the same objects.
"""

import argparse
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from e2e.local import binaries
from tests.support import libyaml
from triton_pipelines.api import names

ROOT = Path(__file__).parent.parent
CHART = ROOT / "charts" / "triton-pipelines"
CRD_TEMPLATES = CHART / "templates" / "crds"
MANIFESTS = ROOT / "manifests"
CRDS = ROOT / "crds"
NAMESPACE = "triton-pipelines"
GENERATED = "# Made by `python -m hack.chart`; edit {source} instead.\n"
TABLE_START, TABLE_END = "<!-- values: start -->", "<!-- values: end -->"
MONITORING = ("podMonitor", "prometheusRule")
HELM_ONLY_LABELS = ("helm.sh/chart", "app.kubernetes.io/managed-by")


class ChartError(RuntimeError):
    """A source file does not have the shape that the generator needs.

    The message names the file and what to do.
    """


@dataclass(frozen=True)
class Value:
    """One documented value: dotted path, default and its comment in values.yaml."""

    path: tuple[str, ...]
    default: Any
    description: str


# --- CRDs as templates ----------------------------------------------------------------------------


def escape_braces(text: str) -> str:
    """Return text that Helm's template engine renders back to `text`.

    Opening and closing double braces become quoted literals.
    """
    return re.sub(r"\{\{|\}\}", lambda match: '{{ "' + match[0] + '" }}', text)


def crd_template(text: str, source: str) -> str:
    """Return a CRD as a template.

    It is rendered only with `crds.enabled`, kept on uninstall with `crds.keep`, and has the chart's
    labels.

    Args:
        text: YAML of one CustomResourceDefinition.
        source: file name, for the header and messages.

    Raises:
        ChartError: not a single CRD, or metadata that is not written in block style.
    """
    document = yaml.safe_load(text)
    if not isinstance(document, dict) or document.get("kind") != "CustomResourceDefinition":
        raise ChartError(f"{source}: must contain exactly one CustomResourceDefinition")
    body = "".join(
        f"{line}\n" for line in text.splitlines() if not line.startswith("#") and line != "---"
    )
    body, found = re.subn(
        r"^metadata:\n(?: +.*\n)+", "METADATA\n", body, count=1, flags=re.MULTILINE
    )
    if not found:
        raise ChartError(f"{source}: no metadata in block style found")
    header = (
        "{{- /* "
        + GENERATED.format(source=source).strip("# \n")
        + " */}}\n{{- if .Values.crds.enabled }}\n"
    )
    return (
        header
        + escape_braces(body).replace("METADATA\n", _crd_metadata(document["metadata"]), 1)
        + "{{- end }}\n"
    )


def _crd_metadata(metadata: Mapping[str, Any]) -> str:
    """The template's metadata: own labels and annotations beside the chart's."""
    labels = {
        key: value
        for key, value in metadata.get("labels", {}).items()
        if not key.startswith("app.kubernetes.io/")
    }
    lines = [
        f"  name: {metadata['name']}",
        "  labels:",
        *(f"    {key}: {json.dumps(value)}" for key, value in labels.items()),
    ]
    lines += ['    {{- include "triton-pipelines.labels" . | nindent 4 }}']
    annotations = [
        f"    {key}: {escape_braces(json.dumps(value))}"
        for key, value in metadata.get("annotations", {}).items()
    ]
    keep = "    helm.sh/resource-policy: keep"
    if annotations:
        lines += [
            "  annotations:",
            *annotations,
            "    {{- if .Values.crds.keep }}",
            keep,
            "    {{- end }}",
        ]
    else:
        lines += ["  {{- if .Values.crds.keep }}", "  annotations:", keep, "  {{- end }}"]
    return "metadata:\n" + "\n".join(lines) + "\n"


# --- Values: comments, schema, table --------------------------------------------------------------


def documented_values(text: str) -> list[Value]:
    """Every value of values.yaml with a `# --` comment above it, in order."""
    defaults = yaml.safe_load(text)
    found: list[Value] = []
    stack: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("# -- "):
            comment = [stripped.removeprefix("# -- ")]
        elif stripped.startswith("# ") and comment:
            comment.append(stripped.removeprefix("# "))
        elif match := re.match(r"( *)([A-Za-z][A-Za-z0-9]*):", line):
            indent = len(match[1])
            stack = [*(item for item in stack if item[0] < indent), (indent, match[2])]
            if comment:
                path = tuple(key for _, key in stack)
                found.append(Value(path, _at(defaults, path), " ".join(comment)))
            comment = []
    return found


def undocumented_values(text: str) -> list[str]:
    """Return the dotted paths of leaves of values.yaml that no comment describes.

    A comment on a parent also describes its leaves.
    """
    documented = {value.path for value in documented_values(text)}

    def leaves(node: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if path in documented:
            return
        if isinstance(node, dict) and node:
            for key, item in node.items():
                yield from leaves(item, (*path, key))
        else:
            yield path

    return [".".join(path) for path in leaves(yaml.safe_load(text), ())]


def described_schema(schema: Mapping[str, Any], values: Sequence[Value]) -> dict[str, Any]:
    """The schema with the description of each documented value.

    Raises:
        ChartError: a value that the schema does not know.
    """
    result: dict[str, Any] = json.loads(json.dumps(schema))
    for value in values:
        node = result
        for key in value.path:
            try:
                node = node["properties"][key]
            except KeyError:
                raise ChartError(
                    f"values.schema.json: no property for {'.'.join(value.path)} of "
                    "values.yaml; add it"
                ) from None
        node["description"] = value.description
    return result


def values_table(values: Sequence[Value]) -> str:
    """Markdown table of values, defaults and meanings."""
    rows = ["| Value | Default | Meaning |", "| --- | --- | --- |"]
    for value in values:
        default = json.dumps(value.default)
        rows.append(
            f"| `{'.'.join(value.path)}` | `{default}` | "
            f"{value.description.replace('|', chr(92) + '|')} |"
        )
    return "\n".join(rows) + "\n"


def with_table(readme: str, table: str) -> str:
    """The README with the table between its marks.

    Raises:
        ChartError: the marks are missing.
    """
    before, start, rest = readme.partition(TABLE_START)
    _, end, after = rest.partition(TABLE_END)
    if not start or not end:
        raise ChartError(
            f"charts/triton-pipelines/README.md: the marks {TABLE_START} and {TABLE_END} are "
            "missing"
        )
    return f"{before}{start}\n{table}{end}{after}"


def argocd_config(script: str) -> str:
    """The sample ConfigMap of Argo CD with the health check."""
    labels = {"app.kubernetes.io/name": "argocd-cm", "app.kubernetes.io/part-of": "argocd"}
    head = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "argocd-cm", "namespace": "argocd", "labels": labels},
    }
    note = (
        "# Merge this key into the ConfigMap argocd-cm of your Argo CD: its health check for "
        "pipelines.\n"
    )
    key = f"  resource.customizations.health.{names.GROUP}_{names.KIND}: |\n"
    text = yaml.safe_dump(head, sort_keys=False) + "data:\n" + key + textwrap.indent(script, "    ")
    return GENERATED.format(source="manifests/gitops/argocd-health.lua") + note + text


# --- Kustomize from the chart ---------------------------------------------------------------------


def render(
    *arguments: str, release: str = "triton-pipelines", namespace: str = NAMESPACE
) -> list[dict[str, Any]]:
    """Objects of the chart as `helm template` makes them, in its order.

    Raises:
        ChartError: helm refused, with its message.
    """
    command = [
        str(binaries.path_of("helm")),
        "template",
        release,
        str(CHART),
        "--namespace",
        namespace,
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ChartError(done.stderr.strip())
    return [document for document in libyaml.load_all(done.stdout) if document]


def without_helm_labels(node: Any) -> Any:
    """The object without the labels that only say that Helm installed it."""
    if isinstance(node, dict):
        return {
            key: without_helm_labels(item)
            for key, item in node.items()
            if key not in HELM_ONLY_LABELS
        }
    if isinstance(node, list):
        return [without_helm_labels(item) for item in node]
    return node


def manifest(objects: Sequence[Mapping[str, Any]]) -> str:
    """Objects as one YAML stream without Helm's labels."""
    header = GENERATED.format(source="charts/triton-pipelines")
    return header + yaml.safe_dump_all(
        [without_helm_labels(item) for item in objects],
        sort_keys=False,
        width=150,
        explicit_start=True,
    )


def scoped(objects: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The objects that a namespaced installation has instead of the cluster-wide ones."""
    return [
        item
        for item in objects
        if item["kind"] in {"Role", "RoleBinding"} and not item["metadata"]["name"].endswith("-key")
    ]


def added(
    objects: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The objects that are not among ``before``, by kind and name."""
    known = {(item["kind"], item["metadata"]["name"]) for item in before}
    return [item for item in objects if (item["kind"], item["metadata"]["name"]) not in known]


# --- All generated files --------------------------------------------------------------------------


def written_from_files() -> dict[Path, str]:
    """Return the generated files that do not need helm, with their expected content.

    They are the CRD templates, the schema, the table of values and the samples.
    """
    values = documented_values((CHART / "values.yaml").read_text())
    schema_path, readme_path = CHART / "values.schema.json", CHART / "README.md"
    files: dict[Path, str] = {}
    for path in sorted(CRDS.glob("*.yaml")):
        if path.name != "kustomization.yaml":
            files[CRD_TEMPLATES / path.name] = crd_template(path.read_text(), f"crds/{path.name}")
    files[schema_path] = (
        json.dumps(described_schema(json.loads(schema_path.read_text()), values), indent=2) + "\n"
    )
    files[readme_path] = with_table(readme_path.read_text(), values_table(values))
    gitops = MANIFESTS / "gitops"
    files[gitops / "argocd-cm.yaml"] = argocd_config((gitops / "argocd-health.lua").read_text())
    return files


def rendered_from_chart() -> dict[Path, str]:
    """The kustomize manifests with the content they should have."""
    everything = render("--set", "crds.enabled=false")
    namespaced = render("--set", "crds.enabled=false", "--set", f"watch.namespaces={{{NAMESPACE}}}")
    watched = [
        f"--set={value}.enabled=true"
        for value in ("metrics.podMonitor", *(f"monitoring.{one}" for one in MONITORING))
    ]
    return {
        MANIFESTS / "base" / "operator.yaml": manifest(everything),
        MANIFESTS / "overlays" / "namespaced" / "roles.yaml": manifest(scoped(namespaced)),
        MANIFESTS / "monitoring" / "monitoring.yaml": manifest(
            added(render("--set", "crds.enabled=false", *watched), everything)
        ),
    }


def differences(files: Mapping[Path, str]) -> list[Path]:
    """The files whose content on disk is another one."""
    return sorted(
        path for path, content in files.items() if not path.exists() or path.read_text() != content
    )


def orphans(files: Mapping[Path, str]) -> list[Path]:
    """CRD templates without a source."""
    return sorted(path for path in CRD_TEMPLATES.glob("*.yaml") if path not in files)


def _at(node: Any, path: Sequence[str]) -> Any:
    for key in path:
        node = node[key]
    return node


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m hack.chart",
        description="Generate the derived files of the chart and the manifests.",
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 if a file would change"
    )
    check = parser.parse_args(arguments).check
    try:
        files = written_from_files()
        obsolete = orphans(files)
        stale = differences(files)
        if not check:
            _write(files, stale)
        # After the chart's own files: helm reads them.
        rendered = rendered_from_chart()
    except (ChartError, binaries.BinaryError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    stale_rendered = differences(rendered)
    if not check:
        _write(rendered, stale_rendered)
        for path in obsolete:
            path.unlink()
    changed = [*stale, *stale_rendered, *obsolete]
    for path in changed:
        print(f"{'differs' if check else 'updated'}: {path.relative_to(ROOT)}")
    return 1 if check and changed else 0


def _write(files: Mapping[Path, str], paths: Sequence[Path]) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[path])


if __name__ == "__main__":
    sys.exit(main())
