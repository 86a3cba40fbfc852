"""Fixtures for the files in cluster/."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

TOP = Path(__file__).parents[3]


class Cluster:
    """Parses the files in cluster/."""

    def yaml(self, name: str) -> Any:
        return yaml.safe_load(self.text(name))

    def text(self, name: str) -> str:
        return (TOP / "cluster" / name).read_text("utf-8")

    def manifests(self) -> dict[str, dict[str, Any]]:
        """Every Kubernetes object by `Kind/name`."""
        found = {}
        for path in sorted((TOP / "cluster" / "kubernetes").glob("*.yaml")):
            for one in yaml.safe_load_all(path.read_text("utf-8")):
                found[f"{one['kind']}/{one['metadata']['name']}"] = one
        return found

    def ray_clusters(self) -> dict[str, dict[str, Any]]:
        """The Ray clusters, by the kind of their manifest."""
        objects = {o["kind"]: o["spec"] for o in self.manifests().values() if o["apiVersion"] == "ray.io/v1"}
        return {
            "RayCluster": objects["RayCluster"],
            "RayJob": objects["RayJob"]["rayClusterSpec"],
            "RayService": objects["RayService"]["rayClusterConfig"],
        }

    def pods(self) -> dict[str, dict[str, Any]]:
        """The spec of every pod template, by its location."""
        found = {}
        for kind, spec in self.ray_clusters().items():
            found[f"{kind} head"] = spec["headGroupSpec"]["template"]["spec"]
            for group in spec["workerGroupSpecs"]:
                found[f"{kind} {group['groupName']}"] = group["template"]["spec"]
        objects = self.manifests()
        found["submitter"] = objects["RayJob/graphrag-ray-index"]["spec"]["submitterPodTemplate"]["spec"]
        found["redis"] = objects["StatefulSet/redis"]["spec"]["template"]["spec"]
        return found


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def pinned() -> dict[str, str]:
    """The pinned versions in constraints.txt."""
    lines = (TOP / "constraints.txt").read_text("utf-8").split()
    return dict(line.split("==") for line in lines)
