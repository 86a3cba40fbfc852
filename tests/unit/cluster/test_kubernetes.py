"""The manifests for KubeRay: what can be known of them without a Kubernetes."""

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
    """Of an object, and no others."""
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


def test_what_is_of_kuberay_has_its_fields_and_types(cluster):
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
def test_a_number_where_kuberay_has_text_and_a_field_that_it_does_not_know_are_found(
    cluster, section: str, field: str, value: object
):
    spec = cluster.ray_clusters()["RayCluster"]
    spec[section][field] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(spec, CLUSTER)


@pytest.mark.parametrize("where", EVERYWHERE)
def test_a_pod_is_one_that_kubernetes_takes(cluster, where: str):
    assert set(cluster.pods()) == set(EVERYWHERE)
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": cluster.pods()[where],
    }  # fmt: skip
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_what_is_not_of_kuberay_is_what_kubernetes_takes(cluster):
    own = [o for o in cluster.manifests().values() if o["apiVersion"] != "ray.io/v1"]
    assert len(own) == 6
    for one in own:
        kubernetes_validate.validate(one, KUBERNETES, strict=True)


@pytest.mark.parametrize("where", EVERYWHERE)
def test_a_pod_is_not_root_and_has_resources(cluster, where: str):
    pod = cluster.pods()[where]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert set(container["resources"]["requests"]) >= {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("where", [w for w in EVERYWHERE if w != "submitter"])
def test_a_pod_that_stays_says_whether_it_is_well(cluster, where: str):
    for container in cluster.pods()[where]["containers"]:
        assert {"readinessProbe", "livenessProbe"} <= set(container)


def test_containers_have_the_names_that_kuberay_looks_for(cluster):
    for where, pod in cluster.pods().items():
        if where.startswith("Ray"):
            wanted = "ray-head" if where.endswith("head") else "ray-worker"
            assert pod["containers"][0]["name"] == wanted


def test_ray_and_image_are_the_same_everywhere(cluster, pinned):
    assert {s["rayVersion"] for s in cluster.ray_clusters().values()} == {pinned["ray"]}
    images = {
        container["image"]
        for where, pod in cluster.pods().items() if where != "redis"
        for container in pod["containers"]
    }  # fmt: skip
    from graphrag_ray.version import __version__

    assert images == {f"REGISTRY/graphrag-ray:{__version__}"}
    assert cluster.yaml("aws.yaml")["docker"]["image"] in images


def test_a_head_is_not_on_a_machine_that_is_taken_back_and_its_workers_say_when_they_go(cluster):
    for where, pod in cluster.pods().items():
        if where.endswith(" head"):
            assert "requiredDuringSchedulingIgnoredDuringExecution" in pod["affinity"]["nodeAffinity"]
            assert "tolerations" not in pod
        elif where.endswith(" workers"):
            (drain,) = pod["containers"][0]["env"]
            assert hasattr(ray_constants, drain["name"])
            assert 0 < float(drain["value"]) < pod["terminationGracePeriodSeconds"]


SECRET = re.compile(r"(sk-[A-Za-z0-9]|AKIA[0-9A-Z]{16}|-----BEGIN|password:\s*[\"']?\w{6,}$)", re.MULTILINE)


def test_no_secret_stands_in_a_file(cluster):
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


def test_secrets_that_are_named_are_those_that_the_page_makes(cluster):
    named = set(
        re.findall(r"secretRef.*?'name': '([\w-]+)'|secretKeyRef.*?'name': '([\w-]+)'", str(cluster.pods()))
    )
    names = {one for pair in named for one in pair if one}
    made = set(re.findall(r"create secret generic ([\w-]+)", cluster.text("README.md")))
    assert names and names <= made


def test_no_secret_or_service_of_ours_has_a_name_that_the_operator_gives_to_its_own(cluster):
    """KubeRay keeps Ray's token in a secret of the cluster's name, and calls the head's service by that name,
    a RayService's too. The clusters of a RayJob and a RayService have a suffix of their own."""
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


def test_the_job_is_a_command_that_can_be_typed(cluster):
    job = cluster.manifests()["RayJob/graphrag-ray-index"]["spec"]
    program, script, *arguments = shlex.split(job["entrypoint"])
    assert program == "python"
    folder = "/opt/graphrag-ray/"
    assert f"COPY jobs {folder}jobs" in cluster.text("Dockerfile")
    assert (TOP / script.removeprefix(folder)).is_file()
    given = index.make_context("index", arguments, parent=main.make_context("graphrag-ray", ["index"])).params
    assert given["config"] == "s3://BUCKET/settings.yaml" and given["root"] == "s3://BUCKET/index"


def test_a_job_that_spent_its_budget_is_not_tried_again_by_itself(cluster):
    assert cluster.manifests()["RayJob/graphrag-ray-index"]["spec"]["backoffLimit"] == 0


def serve_config(cluster) -> dict[str, Any]:
    return yaml.safe_load(cluster.manifests()["RayService/graphrag-ray"]["spec"]["serveConfigV2"])


def test_the_service_is_an_application_of_ours_with_arguments_that_it_takes(cluster):
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


def test_prometheus_finds_the_port_of_the_metrics_and_may_reach_it(cluster):
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
    assert reached == [[{"namespaceSelector": {"matchLabels": {"graphrag-ray/scrapes": "yes"}}}]]


def test_the_file_of_addresses_is_the_one_that_ray_writes(cluster):
    (job,) = cluster.yaml("prometheus.yaml")["scrape_configs"]
    (path,) = job["file_sd_configs"][0]["files"]
    assert Path(path).name == ray_constants.PROMETHEUS_SERVICE_DISCOVERY_FILE


def test_ports_of_probes_and_services_are_those_of_the_containers(cluster):
    ports = {
        p["name"]: p["containerPort"] for p in cluster.pods()["RayService workers"]["containers"][0]["ports"]
    }
    assert ports["serve"] == serve_config(cluster)["http_options"]["port"]
    readiness = json.dumps(cluster.pods()["RayService workers"]["containers"][0]["readinessProbe"])
    assert f"localhost:{ports['serve']}/-/healthz" in readiness
