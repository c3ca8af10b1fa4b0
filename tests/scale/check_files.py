"""What the tools of Kubernetes, Helm and KServe say of docs/examples/scale.

    check_files.py [--crds=DIR]

- Helm's own SDK lints the chart, checks values against its schema, and renders it, for each set of values below;
- each object is checked against the schema of its kind: Kubernetes' own, strictly, and those of the CustomResourceDefinitions below
  DIR (KServe's, KEDA's, Prometheus's operator's), in which a field that a schema does not know is an error as well;
- objects without a schema are told, and are not checked.

Needs the packages that scripts/test-scale installs."""

import argparse
import pathlib
import sys

import helm_python as helm
import kubernetes_validate
import yaml
from jsonschema import Draft202012Validator

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs/examples/scale"
VOLUME = {"repository": {"uri": "/models", "volumeClaim": "models", "controlMode": "none"}}
VALUES = {
    "as they are": {},
    "a volume": VOLUME,
    "an autoscaler": {"autoscaling": {"kind": "hpa"}, "monitor": {"enabled": True}},
    "KEDA": {"autoscaling": {"kind": "keda"}},
    "everything": {"extraArgs": ["--shards=2", "--metrics-config=histogram_latencies=true"], "env": [{"name": "A", "value": "b"}],
                   "repository": {"uri": "gs://bucket/models", "controlMode": "explicit", "credentialsSecret": "keys"},
                   "imagePullSecrets": [{"name": "registry"}], "nodeSelector": {"kind": "gpu"}, "seccomp": {"type": "Unconfined"},
                   "tolerations": [{"key": "gpu", "operator": "Exists"}], "resources": {"limits": {"nvidia.com/gpu": "1"}}},
}
REFUSED = {
    "an unknown value": {"replica": 2},
    "a repository of another kind": {"repository": {"uri": "ftp://models"}},
    "no pods": {"replicas": 0},
    "an unknown autoscaler": {"autoscaling": {"kind": "magic"}},
}


def schemas_below(folder):
    """(group/version, kind) -> schema, of the CustomResourceDefinitions in the files of a folder."""
    found = {}
    for file in sorted(folder.rglob("*.yaml")) if folder else ():
        for document in yaml.safe_load_all(file.read_text()):
            if isinstance(document, dict) and document.get("kind") == "CustomResourceDefinition":
                spec = document["spec"]
                for version in spec["versions"]:
                    if "schema" in version:
                        found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = closed(version["schema"]["openAPIV3Schema"])
    return found


def closed(schema):
    """The schema, in which fields that it does not name are errors, as a server prunes them in silence."""
    if isinstance(schema, list):
        return [closed(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: {name: closed(entry) for name, entry in value.items()} if key == "properties" else closed(value)
              for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields") and "additionalProperties" not in schema:
        schema["additionalProperties"] = False
    return schema


class Check:
    def __init__(self, schemas):
        self.schemas, self.complaints, self.checked, self.unknown = schemas, [], 0, set()

    def objects(self, where, text):
        for document in yaml.safe_load_all(text):
            if document:
                self.object(where, document)

    def object(self, where, document):
        kind = document["apiVersion"], document["kind"]
        if kind in self.schemas:
            document = {key: value for key, value in document.items() if key != "metadata"}
            schema = dict(self.schemas[kind])
            errors = [f"{'/'.join(map(str, error.absolute_path))}: {error.message[:300]}" for error in Draft202012Validator(schema).iter_errors(document)]
        else:
            try:
                kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
                errors = []
            except kubernetes_validate.SchemaNotFoundError:
                self.unknown.add("/".join(kind))
                return
            except kubernetes_validate.ValidationError as error:
                errors = [str(error)[:500]]
        self.checked += 1
        self.complaints += [f"{where}, {kind[1]}: {error}" for error in errors]


def render(values):
    with helm.Chart.load(str(EXAMPLES / "helm")) as chart:
        chart.validate_schema(chart.merge_values(values))
        return chart.render(values, name="production", namespace="models")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--crds", type=pathlib.Path, help="a folder below which there are CustomResourceDefinitions")
    options = parser.parse_args()
    check = Check(schemas_below(options.crds))

    findings = helm.lint(str(EXAMPLES / "helm"))
    # 1 is advice: an icon is recommended.
    serious = [message for message in findings["messages"] if message["severity"] > 1]
    print(f"Helm {helm.helm_sdk_version()} lints {findings['total_charts_linted']} chart: {serious or 'good'}")
    check.complaints += [f"lint: {entry}" for entry in [*serious, *findings["errors"]]]
    for name, values in VALUES.items():
        for file, text in render(values).items():
            check.objects(f"chart with {name}, {file}", text)
    for name, values in REFUSED.items():
        try:
            render(values)
            check.complaints.append(f"the chart takes {name}")
        except helm.HelmError:
            pass
    for file in sorted((EXAMPLES / "kserve").glob("*.yaml")):
        check.objects(file.name, file.read_text())

    print(f"{check.checked} objects checked, by Kubernetes {kubernetes_validate.latest_version()} and {len(check.schemas)} schemas of custom resources")
    for kind in sorted(check.unknown):
        print(f"not checked, for want of a schema: {kind}")
    for complaint in check.complaints:
        print(complaint)
    sys.exit(bool(check.complaints))


if __name__ == "__main__":
    main()
