"""Builds Kubernetes' files by kustomize and checks them against schemas."""

import functools
import json
import os
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from referencing import Registry, Resource

ROOT = Path(__file__).parents[2]
KUBERAY = ROOT / "deploy" / "kuberay"
VERSION = "1.37"


@functools.cache
def build(overlay):
    """The documents of an overlay as `kubectl apply -k` sends them. Skips where there is no kustomize."""
    command = next(
        (words for words in (["kubectl", "kustomize"], ["kustomize", "build"]) if shutil.which(words[0])), None
    )
    if command is None:
        pytest.skip("building an overlay needs kubectl or kustomize, which pip cannot install")
    done = subprocess.run([*command, KUBERAY / overlay], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def find(documents, kind, name=None):
    """The one document of a kind."""
    [match] = [
        candidate
        for candidate in documents
        if candidate["kind"] == kind and name in (None, candidate["metadata"]["name"])
    ]
    return match


@functools.cache
def _validator(resource):
    """The validator of `group/version Kind`: ours for custom resources, Kubernetes' published schema for the rest."""
    ours = yaml.safe_load((Path(__file__).parent / "resources.yaml").read_text())
    folder = resources.files(kubernetes_validate) / "kubernetes-json-schema" / f"v{VERSION}.0-local-strict"
    definitions = json.loads((folder / "_definitions.json").read_text())
    registry = Registry().with_resource(definitions["$id"], Resource.from_contents(definitions))
    if resource in ours["kinds"]:
        schema = {**ours["kinds"][resource], "$defs": ours["$defs"]}
    else:
        version, kind = resource.split()
        group, _, number = version.rpartition("/")
        name = "-".join(filter(None, (kind.lower(), group.partition(".")[0], number)))
        schema = json.loads((folder / f"{name}.json").read_text())
    return jsonschema.Draft202012Validator(schema, registry=registry)


def is_custom(document):
    """Whether it is a kind that resources.yaml describes."""
    return document["apiVersion"].partition("/")[0] in {"ray.io", "monitoring.coreos.com"}


def problems(document):
    """What is wrong with a document, in words."""
    validator = _validator(f"{document['apiVersion']} {document['kind']}")
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def real_schema(document):
    """The CRD's schema, made strict, from the folder KUBERNETES_CRDS names. Skips without."""
    if "KUBERNETES_CRDS" not in os.environ:
        pytest.skip("the operators publish their CRDs on no package index; KUBERNETES_CRDS names a folder with them")
    for path in Path(os.environ["KUBERNETES_CRDS"]).glob("*.yaml"):
        crd = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
        for version in crd["spec"]["versions"]:
            if f"{crd['spec']['group']}/{version['name']} {crd['spec']['names']['kind']}" == (
                f"{document['apiVersion']} {document['kind']}"
            ):
                schema = version["schema"]["openAPIV3Schema"]
                schema["properties"]["metadata"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                return _strict(schema)
    raise AssertionError(f"{os.environ['KUBERNETES_CRDS']} has no CRD of {document['kind']}")


def _strict(schema):
    """As an API server with strict field validation reads it: what is not in `properties` is unknown."""
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: _strict(part) for key, part in schema.items()}
    if isinstance(strict.get("properties"), dict) and "x-kubernetes-preserve-unknown-fields" not in strict:
        strict.setdefault("additionalProperties", False)
    if strict.get("x-kubernetes-int-or-string"):
        strict.pop("type", None)
    return strict
