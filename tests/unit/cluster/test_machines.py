"""The image, the EC2 cluster and Ray Serve LLM models match the schemas of the programs that read them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import botocore.session
import click
import pytest
from botocore.validate import ParamValidator
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.llm._internal.serve.core.configs.llm_config import LLMConfig
from ray.scripts.scripts import cli
from ray.serve.schema import ServeDeploySchema

from graphrag_ray.base.settings_file import load_settings

TOP = Path(__file__).parents[3]


def test_the_ec2_cluster_matches_the_schema_of_ray(cluster):
    config = prepare_config(cluster.yaml("aws.yaml"))
    validate_config(config)
    types = config["available_node_types"]
    assert types["head"]["max_workers"] == 0 and types["spot"]["max_workers"] == 8
    assert config["setup_commands"] == config["head_setup_commands"] == []
    secrets = re.findall(r"for name in ([\w -]+); do", config["initialization_commands"][0])[0].split()
    options = " ".join(config["docker"]["run_options"])
    for name in secrets:
        assert f"/{name}:/run/secrets/{name}:ro" in options
    assert "--env RAY_AUTH_MODE=token --env RAY_AUTH_TOKEN_PATH=/run/secrets/ray-token" in options
    assert "ray-token" in secrets


def test_the_machines_match_the_ec2_api(cluster):
    """Uses the description of the EC2 API in botocore."""
    shape = (
        botocore.session.get_session().get_service_model("ec2").operation_model("RunInstances").input_shape
    )
    machines = cluster.yaml("aws.yaml")["available_node_types"]
    for machine in machines.values():
        given: dict[str, Any] = {"MinCount": 1, "MaxCount": 1, **machine["node_config"]}
        assert set(given) <= set(shape.members)
        assert ParamValidator().validate(given, shape).generate_report() == ""
        assert given["MetadataOptions"]["HttpTokens"] == "required"
        market = given.get("InstanceMarketOptions", {}).get("MarketType")
        assert market == (None if machine is machines["head"] else "spot")


@pytest.mark.parametrize("which", ["head_start_ray_commands", "worker_start_ray_commands"])
def test_the_commands_that_start_ray_are_valid(cluster, which: str):
    lines = [line for line in cluster.yaml("aws.yaml")[which] if line.startswith("ray ")]
    assert len(lines) == 2
    for line in lines:
        program, name, *arguments = shlex.split(line)
        command = cli.get_command(click.Context(cli), name)
        assert program == "ray" and command is not None
        options = {option for parameter in command.params for option in parameter.opts}
        assert {a.partition("=")[0] for a in arguments if a.startswith("--")} <= options


def test_the_dashboard_of_the_head_listens_on_loopback_only(cluster):
    assert "--dashboard-host=127.0.0.1" in cluster.yaml("aws.yaml")["head_start_ray_commands"][-1]


class Metadata(BaseHTTPRequestHandler):
    """EC2's metadata service (IMDSv2). Requires a token; sends a spot notice from the third request on."""

    looks = 0

    def do_PUT(self) -> None:
        self.answer(b"a-token" if self.path == "/latest/api/token" else None)

    def do_GET(self) -> None:
        type(self).looks += 1
        shown = self.headers.get("X-aws-ec2-metadata-token") == "a-token"
        right = self.path == "/latest/meta-data/spot/instance-action" and shown
        self.answer(b'{"action": "terminate"}' if right and self.looks >= 3 else None)

    def answer(self, body: bytes | None) -> None:
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.mark.skipif(shutil.which("wget") is None, reason="needs wget, as the image has it")
def test_a_spot_machine_is_drained_after_its_notice(tmp_path: Path):
    told = tmp_path / "told"
    (tmp_path / "ray").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {told}\n')
    (tmp_path / "ray").chmod(0o755)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "METADATA_URL": f"http://127.0.0.1:{server.server_port}",
        "LOOK_S": "0.05",
    }
    script = TOP / "cluster" / "drain-on-spot-notice.sh"
    subprocess.run([script], env=environment, check=True, timeout=20)
    server.shutdown()
    name, *arguments = told.read_text().splitlines()
    assert Metadata.looks == 3
    command = cli.get_command(click.Context(cli), name)
    with command.make_context(name, arguments) as given:
        assert 0 < given.params["deadline_remaining_seconds"] < 120


def instructions(text: str) -> list[tuple[str, str]]:
    """Return the (instruction, arguments) pairs of a Dockerfile."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(None, 1)) for line in joined.splitlines()]  # type: ignore[misc]


def test_the_image_has_a_tested_python_version_and_a_user_other_than_root(cluster):
    found = instructions(cluster.text("Dockerfile"))
    base = next(words for name, words in found if name == "ARG" and words.startswith("BASE="))
    version = re.search(r"python:(\d+\.\d+)", base).group(1)
    project = (TOP / "pyproject.toml").read_text("utf-8")
    assert version in SpecifierSet(re.search(r'requires-python = "(.+)"', project).group(1))
    assert f'python_version = "{version}"' in project
    assert [words for name, words in found if name == "USER"] == ["1000:1000"]


def test_files_that_the_image_copies_exist_and_are_not_ignored(cluster):
    ignored = (TOP / ".dockerignore").read_text("utf-8").split("\n")
    assert "*" in ignored
    for name, words in instructions(cluster.text("Dockerfile")):
        if name == "COPY" and not words.startswith("--from"):
            for source in words.split()[:-1]:
                assert (TOP / source).exists() and f"!{source}" in ignored, source


def test_packages_in_the_image_are_pinned(cluster, pinned):
    found = instructions(cluster.text("Dockerfile"))
    (install,) = (words for name, words in found if "pip install" in words)
    assert "--constraint constraints.txt" in install and "--no-cache-dir" in install
    assert install.endswith('".${EXTRAS}" boto3') and {"boto3", "botocore", "s3transfer"} <= set(pinned)
    extras = tomllib.loads((TOP / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    (named,) = (words for name, words in found if name == "ARG" and words.startswith("EXTRAS="))
    for extra in named.removeprefix("EXTRAS=[").removesuffix("]").split(","):
        assert {Requirement(one).name for one in extras[extra]} <= set(pinned)


def llm_application(cluster) -> Any:
    (application,) = ServeDeploySchema.model_validate(cluster.yaml("serve-llm.yaml")).applications
    return application


def test_the_model_matches_the_schema_of_ray_serve_llm(cluster):
    """Checks one model only, because the schema for all of them, LLMServingArgs, requires vLLM."""
    application = llm_application(cluster)
    assert application.import_path == "ray.serve.llm:build_openai_app"
    assert set(application.args) == {"llm_configs"}
    for given in application.args["llm_configs"]:
        assert set(given) <= set(LLMConfig.model_fields)
        LLMConfig.model_validate(given)


def test_the_self_hosted_settings_match_the_endpoint(cluster):
    settings = load_settings(TOP / "cluster" / "settings-self-hosted.yaml")
    model, (endpoint,) = settings.model("default"), settings.model("default").endpoints
    application = llm_application(cluster)
    (served,) = application.args["llm_configs"]
    assert model.model == served["model_loading_config"]["model_id"]
    assert model.context_window == served["engine_kwargs"]["max_model_len"]
    port = cluster.yaml("serve-llm.yaml")["http_options"]["port"]
    assert endpoint.base_url.endswith(f":{port}{application.route_prefix}/v1")
    assert endpoint.api_key_env is None and endpoint.tokens_per_minute is endpoint.requests_per_minute is None
    name = "graphrag-ray-jobs-head-svc.graphrag-ray"
    assert f"//{name}:" in endpoint.base_url and "RayCluster/graphrag-ray-jobs" in cluster.manifests()
