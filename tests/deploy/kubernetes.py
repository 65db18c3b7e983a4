"""Builds Kubernetes' files by kustomize and checks them against schemas."""

import functools
import json
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


def problems(document):
    """What is wrong with a document, in words."""
    validator = _validator(f"{document['apiVersion']} {document['kind']}")
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]
