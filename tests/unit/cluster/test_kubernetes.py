"""Checks of the manifests for KubeRay that need no Kubernetes cluster."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from ray._private import ray_constants
from ray.serve.schema import ServeDeploySchema

from graphrag_ray.cli.command_line import main
from graphrag_ray.cli.commands.index_command import index

TOP = Path(__file__).parents[3]
KUBERNETES = "1.35"

TEXT, FLAG, COUNT = {"type": "string"}, {"type": "boolean"}, {"type": "integer", "minimum": 0}
NUMBER, TEXTS = {"type": "number"}, {"type": "object", "additionalProperties": TEXT}
OF_KUBERNETES: dict[str, Any] = {}
"""What Kubernetes' own schemas say is tested below, or does not occur."""


def fields(*needed: str, **known: Any) -> dict[str, Any]:
    """A schema of an object that has these fields and no others."""
    return {"type": "object", "properties": known, "required": list(needed), "additionalProperties": False}


def one_of(*words: str) -> dict[str, Any]:
    return {"enum": list(words)}


CREDENTIAL = fields(value=TEXT, valueFrom=OF_KUBERNETES)
GROUP = {
    "template": OF_KUBERNETES, "resources": TEXTS, "labels": TEXTS, "rayStartParams": TEXTS,
}  # fmt: skip
CLUSTER = fields(
    "headGroupSpec",
    rayVersion=TEXT,
    suspend=FLAG,
    managedBy=TEXT,
    upgradeStrategy=fields(type=one_of("Recreate", "None")),
    authOptions=fields(mode=one_of("disabled", "token"), secretName=TEXT, enableK8sTokenAuth=FLAG),
    enableInTreeAutoscaling=FLAG,
    autoscalerOptions=fields(
        version=one_of("v1", "v2"),
        upscalingMode=one_of("Default", "Aggressive", "Conservative"),
        idleTimeoutSeconds=COUNT,
        image=TEXT,
        imagePullPolicy=TEXT,
        **dict.fromkeys(("resources", "securityContext", "env", "envFrom", "volumeMounts"), OF_KUBERNETES),
    ),
    gcsFaultToleranceOptions=fields(
        "redisAddress",
        redisAddress=TEXT,
        redisUsername=CREDENTIAL,
        redisPassword=CREDENTIAL,
        externalStorageNamespace=TEXT,
    ),
    headGroupSpec=fields(
        "template", **GROUP, headService=OF_KUBERNETES, enableIngress=FLAG, serviceType=TEXT
    ),
    workerGroupSpecs={
        "items": fields(
            "groupName", "minReplicas", "maxReplicas", "template",
            **GROUP,
            **dict.fromkeys(
                ("replicas", "minReplicas", "maxReplicas", "idleTimeoutSeconds", "numOfHosts"), COUNT
            ),
            groupName=TEXT,
            suspend=FLAG,
            scaleStrategy=fields(workersToDelete={"items": TEXT}),
        )
    },
)  # fmt: skip
KUBERAY = {
    "RayCluster": CLUSTER,
    "RayJob": fields(
        "entrypoint",
        rayClusterSpec=CLUSTER,
        submitterPodTemplate=OF_KUBERNETES,
        submitterConfig=fields(backoffLimit=COUNT),
        submissionMode=one_of("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"),
        **dict.fromkeys(("entrypoint", "runtimeEnvYAML", "jobId", "entrypointResources", "managedBy"), TEXT),
        **dict.fromkeys(("activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished"), COUNT),
        **dict.fromkeys(("shutdownAfterJobFinishes", "suspend"), FLAG),
        **dict.fromkeys(("entrypointNumCpus", "entrypointNumGpus"), NUMBER),
        **dict.fromkeys(("metadata", "clusterSelector"), TEXTS),
    ),
    "RayService": fields(
        serveConfigV2=TEXT,
        rayClusterConfig=CLUSTER,
        serveService=OF_KUBERNETES,
        excludeHeadPodFromServeSvc=FLAG,
        upgradeStrategy=fields(type=one_of("NewCluster", "NewClusterWithIncrementalUpgrade", "None")),
    ),
}
"""Fields of KubeRay 1.6 and their types, from its CRDs and its API reference."""

EVERYWHERE = [
    "RayCluster head", "RayCluster workers", "RayJob head", "RayJob workers", "RayService head",
    "RayService workers", "submitter", "redis",
]  # fmt: skip


def test_kuberay_objects_match_its_schema(cluster):
    kinds = set()
    for one in cluster.manifests().values():
        if one["apiVersion"] == "ray.io/v1":
            kinds.add(one["kind"])
            jsonschema.validate(one["spec"], KUBERAY[one["kind"]])
    assert kinds == set(KUBERAY)
    for spec in cluster.ray_clusters().values():
        for group in spec["workerGroupSpecs"]:
            assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [("headGroupSpec", "rayStartParams", {"num-cpus": 0}), ("autoscalerOptions", "verion", "v2")],
)
def test_wrong_types_and_unknown_fields_are_detected(cluster, section: str, field: str, value: object):
    spec = cluster.ray_clusters()["RayCluster"]
    spec[section][field] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(spec, CLUSTER)


@pytest.mark.parametrize("where", EVERYWHERE)
def test_pods_match_the_kubernetes_schema(cluster, where: str):
    assert set(cluster.pods()) == set(EVERYWHERE)
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": cluster.pods()[where],
    }  # fmt: skip
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_other_objects_match_the_kubernetes_schema(cluster):
    own = [o for o in cluster.manifests().values() if o["apiVersion"] != "ray.io/v1"]
    assert len(own) == 6
    for one in own:
        kubernetes_validate.validate(one, KUBERNETES, strict=True)


@pytest.mark.parametrize("where", EVERYWHERE)
def test_pods_do_not_run_as_root_and_have_resources(cluster, where: str):
    pod = cluster.pods()[where]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert set(container["resources"]["requests"]) >= {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("where", [w for w in EVERYWHERE if w != "submitter"])
def test_long_running_pods_have_probes(cluster, where: str):
    for container in cluster.pods()[where]["containers"]:
        assert {"readinessProbe", "livenessProbe"} <= set(container)


def test_containers_have_the_names_that_kuberay_expects(cluster):
    for where, pod in cluster.pods().items():
        if where.startswith("Ray"):
            wanted = "ray-head" if where.endswith("head") else "ray-worker"
            assert pod["containers"][0]["name"] == wanted


def test_ray_version_and_image_are_the_same_everywhere(cluster, pinned):
    assert {s["rayVersion"] for s in cluster.ray_clusters().values()} == {pinned["ray"]}
    images = {
        container["image"]
        for where, pod in cluster.pods().items() if where != "redis"
        for container in pod["containers"]
    }  # fmt: skip
    from graphrag_ray.version import __version__

    assert images == {f"REGISTRY/graphrag-ray:{__version__}"}
    assert cluster.yaml("aws.yaml")["docker"]["image"] in images


def test_heads_avoid_spot_machines_and_workers_announce_their_end(cluster):
    for where, pod in cluster.pods().items():
        if where.endswith(" head"):
            assert "requiredDuringSchedulingIgnoredDuringExecution" in pod["affinity"]["nodeAffinity"]
            assert "tolerations" not in pod
        elif where.endswith(" workers"):
            (drain,) = pod["containers"][0]["env"]
            assert hasattr(ray_constants, drain["name"])
            assert 0 < float(drain["value"]) < pod["terminationGracePeriodSeconds"]


SECRET = re.compile(r"(sk-[A-Za-z0-9]|AKIA[0-9A-Z]{16}|-----BEGIN|password:\s*[\"']?\w{6,}$)", re.MULTILINE)


def test_manifests_contain_no_secrets(cluster):
    objects = cluster.manifests()
    assert not [name for name in objects if name.startswith("Secret/")]
    for path in sorted((TOP / "cluster").rglob("*")):
        if path.suffix in (".yaml", ".json", ".md") or path.name == "Dockerfile":
            assert not SECRET.search(path.read_text("utf-8")), path
    for where, pod in cluster.pods().items():
        for container in pod["containers"]:
            for variable in container.get("env", []):
                if not variable["name"].startswith("RAY_"):
                    assert "value" not in variable, (where, variable["name"])
                    assert "secretKeyRef" in variable["valueFrom"]


def test_the_secrets_in_use_are_created_in_the_guide(cluster):
    named = set(
        re.findall(r"secretRef.*?'name': '([\w-]+)'|secretKeyRef.*?'name': '([\w-]+)'", str(cluster.pods()))
    )
    names = {one for pair in named for one in pair if one}
    made = set(re.findall(r"create secret generic ([\w-]+)", cluster.text("README.md")))
    assert names and names <= made


def test_names_do_not_collide_with_those_of_the_operator(cluster):
    """KubeRay stores Ray's token in a secret with the cluster's name, and derives the names of head services
    from it, too. The clusters of a RayJob or RayService have a suffix."""
    made = set(re.findall(r"create secret generic ([\w-]+)", cluster.text("README.md")))
    ray = [
        one
        for one in (name.split("/") for name in cluster.manifests())
        if one[0] in ("RayCluster", "RayService")
    ]
    assert len(ray) == len({name for _, name in ray}) == 2
    assert not made & {name for _, name in ray}
    page = cluster.text("README.md")
    (cluster_name,) = (name for kind, name in ray if kind == "RayCluster")
    assert f"service/{cluster_name}-head-svc 8265" in page and f"get secret {cluster_name} " in page


def test_the_job_runs_a_valid_command(cluster):
    job = cluster.manifests()["RayJob/graphrag-ray-index"]["spec"]
    program, script, *arguments = shlex.split(job["entrypoint"])
    assert program == "python"
    folder = "/opt/graphrag-ray/"
    assert f"COPY jobs {folder}jobs" in cluster.text("Dockerfile")
    assert (TOP / script.removeprefix(folder)).is_file()
    given = index.make_context("index", arguments, parent=main.make_context("graphrag-ray", ["index"])).params
    assert given["config"] == "s3://BUCKET/settings.yaml" and given["root"] == "s3://BUCKET/index"


def test_a_job_that_spent_its_budget_is_not_retried(cluster):
    assert cluster.manifests()["RayJob/graphrag-ray-index"]["spec"]["backoffLimit"] == 0


def serve_config(cluster) -> dict[str, Any]:
    return yaml.safe_load(cluster.manifests()["RayService/graphrag-ray"]["spec"]["serveConfigV2"])


def test_the_service_runs_our_application_with_valid_arguments(cluster):
    from graphrag_ray.base.settings_file import load_settings
    from graphrag_ray.service.service_options import ServiceOptions

    schema = ServeDeploySchema.model_validate(serve_config(cluster))
    (application,) = schema.applications
    module, _, function = application.import_path.partition(":")
    assert (TOP / (module.replace(".", "/") + ".py")).is_file() and function == "build"
    options = ServiceOptions.model_validate(application.args)
    load_settings(None, options.overrides)
    (deployment,) = application.deployments
    assert deployment.autoscaling_config["max_replicas"] == options.replicas


def test_prometheus_can_connect_to_the_metrics_port(cluster):
    (job,) = cluster.yaml("prometheus-kubernetes.yaml")["scrape_configs"]
    kept = {r["source_labels"][0]: r["regex"] for r in job["relabel_configs"] if r.get("action") == "keep"}
    name = kept["__meta_kubernetes_pod_container_port_name"]
    for where, pod in cluster.pods().items():
        if where.startswith("Ray"):
            (port,) = [p["containerPort"] for p in pod["containers"][0]["ports"] if p["name"] == name]
            assert port == 8080, "KubeRay's default of --metrics-export-port"
    policy = cluster.manifests()["NetworkPolicy/ray"]["spec"]
    assert policy["podSelector"]["matchLabels"] == {
        "ray.io/is-ray-node": kept["__meta_kubernetes_pod_label_ray_io_is_ray_node"]
    }
    reached = [rule["from"] for rule in policy["ingress"] if {"port": port} in rule.get("ports", [])]
    assert reached == [[{"namespaceSelector": {"matchLabels": {"graphrag-ray/metrics-client": "yes"}}}]]


def test_the_service_discovery_file_is_the_one_that_ray_writes(cluster):
    (job,) = cluster.yaml("prometheus.yaml")["scrape_configs"]
    (path,) = job["file_sd_configs"][0]["files"]
    assert Path(path).name == ray_constants.PROMETHEUS_SERVICE_DISCOVERY_FILE


def test_probes_and_services_use_ports_of_the_containers(cluster):
    ports = {
        p["name"]: p["containerPort"] for p in cluster.pods()["RayService workers"]["containers"][0]["ports"]
    }
    assert ports["serve"] == serve_config(cluster)["http_options"]["port"]
    readiness = json.dumps(cluster.pods()["RayService workers"]["containers"][0]["readinessProbe"])
    assert f"localhost:{ports['serve']}/-/healthz" in readiness
