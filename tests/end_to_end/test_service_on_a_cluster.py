"""`graphrag-ray serve --address` on a running cluster of two nodes, some of whose processes are killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import killing
import pytest
import toy_model
from endpoint import Answer, Endpoint
from served import KEY, Running, until
from simulated import endpoint, get
from world import TOWN, World

pytestmark = pytest.mark.cluster

THEMES = "What are the THEMES?"
ASKED = 20
IN_FLIGHT = 16
"""As in the settings of the world."""


class Site:
    """A cluster, and an index that a service there answers from."""

    def __init__(self, cluster: killing.Cluster, world: World) -> None:
        self.cluster, self.world = cluster, world
        self.port = killing.free_port()

    def serve(self) -> Running:
        """Nodes have neither the token nor the key of the model."""
        key = "models.default.endpoints.0.api_key_env=OPENAI_API_KEY"
        options = ["--replicas", "2", "--set", key, *self.cluster.options]
        return Running(self.world.root, *options, environment=self.cluster.env, port=self.port)

    def replicas(self) -> set[int]:
        """Process ids of running processes."""
        found = killing.processes([node.pid for node in self.cluster.nodes])
        return {p.pid for p in found if is_replica(p.pid)}


def is_replica(pid: int) -> bool:
    try:
        return b"ServeReplica" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    # The GCS considers a node dead after two seconds.
    sooner = {"RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": "3"}
    with Endpoint(respond=toy_model.respond) as model:
        world = World(tmp_path_factory.mktemp("cluster"), model)
        world.write(TOWN)
        world.index(communities={"pack_components_below": 1})
        model.key = KEY
        with killing.cluster(sooner) as cluster:
            for name in ("OPENAI_API_KEY", "GRAPHRAG_RAY_TOKEN"):
                cluster.env.pop(name, None)
            cluster.start_node("--node-name=head", "--num-cpus=1")
            cluster.start_node("--node-name=other", "--num-cpus=1")
            yield Site(cluster, world)


@pytest.mark.timeout(480)
def test_a_service_survives_a_killed_replica_and_the_end_of_its_command(site: Site):
    service = site.serve()
    try:
        until(lambda: len(site.replicas()) == 2)
        for pid in site.replicas():
            assert b"RAY_USE_UVLOOP=0" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        _kill_a_replica(site, service)
        _kill_the_command(site, service)
    finally:
        service.close()


def _kill_a_replica(site: Site, service: Running) -> None:
    model = site.world.endpoint
    model.respond = lambda body: Answer(toy_model.respond(body), delay_s=2.0)

    def ask(number: int) -> tuple[int, Any]:
        try:
            answer = service.ask(THEMES, stream=bool(number % 2))
        except httpx.RemoteProtocolError as e:
            return 0, str(e)
        return answer.status_code, answer.text

    before = site.replicas()
    with ThreadPoolExecutor(ASKED) as pool:
        asked = [pool.submit(ask, number) for number in range(ASKED)]
        until(lambda: model.in_flight == IN_FLIGHT)
        os.kill(min(before), signal.SIGKILL)
        told = [one.result() for one in asked]
    # The questions of the killed replica are lost; the others were asked of both.
    assert {status for status, _ in told} <= {200, 500, 0}
    assert 0 < [status for status, _ in told].count(200) < ASKED
    model.respond = toy_model.respond
    assert service.ask(THEMES).status_code == 200
    seen: set[str] = set()

    def both_answer() -> bool:
        seen.update(re.findall(r'replica="([^"]+)"', service.client.get("/metrics").text))
        return len(seen) == 2

    until(both_answer)  # The new one has the key, which no process holds once the command has ended.
    assert {service.ask(THEMES).status_code for _ in range(10)} == {200}


def _kill_the_command(site: Site, service: Running) -> None:
    os.kill(service.process.pid, signal.SIGKILL)
    service.process.wait()
    assert {service.ask(THEMES).status_code for _ in range(10)} == {200}
    again = site.serve()
    try:
        assert "replacing its application" in "".join(again.said)
        assert {service.ask(THEMES).status_code for _ in range(10)} == {200}
        # While the command runs, one service is left that nobody takes over.
        with pytest.raises(AssertionError, match="already serves 'graphrag'"):
            site.serve()
        code, told = again.end()
        assert code == 0 and "Stopping" in told
    finally:
        again.close()
    assert not site.replicas()


HOLDERS = """
import asyncio, itertools, sys, time
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from graphrag_ray.engine.ray.limiter_actors import SharedLimiter, start_limiters
from graphrag_ray.engine.model_access import Models, open_gateway
from graphrag_ray.base.messages import CallParameters, ChatRequest, Message
from graphrag_ray.base.settings_file import parse_settings

address, url, per_minute, at_once = sys.argv[1:]
SPACE = "holders"
limited = {"base_url": url, "api_key_env": None, "requests_per_minute": float(per_minute)}
model = {"provider": "openai", "model": "m", "endpoints": [limited]}
models = Models.from_settings(parse_settings({"models": {"default": model}}))
ray.init(address=address, log_to_driver=False, logging_level="ERROR")
node = {n["NodeName"]: n["NodeID"] for n in ray.nodes() if n["Alive"]}


class Holder:
    async def ask(self, prefix, name, gone):
        limiter, answered, over = SharedLimiter(prefix, name, models, SPACE), [], asyncio.Event()

        async def one(number):
            for turn in itertools.count():
                said = Message("user", f"{name} {number} {turn}")
                await ask(ChatRequest("map", (said,), CallParameters("default", "m")), "map")
                answered.append(time.time())
                if over.is_set():
                    return

        async with open_gateway(models, limiter, lambda call: None) as ask:
            asking = [asyncio.ensure_future(one(n)) for n in range(int(at_once))]
            end = await gone.wait.remote()
            while len([at for at in answered if at > end]) < int(at_once):
                await asyncio.sleep(0.1)
            over.set()
            await asyncio.gather(*asking)
        limiter.close()
        return len(answered)


class Gone:
    def __init__(self):
        self.event = asyncio.Event()

    async def wait(self):
        await self.event.wait()
        return time.time()

    async def tell(self):
        self.event.set()


def at(name):
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node[name], soft=False)}


for prefix in map("limits-{}".format, itertools.count()):
    (limiter,) = start_limiters(prefix, models, SPACE)  # Ray chooses its node
    here = limiter.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
    if ray.get(here) == node["other"]:
        break
    ray.kill(limiter)
gone = ray.remote(Gone).options(**at("head")).remote()
holders = [ray.remote(Holder).options(**at("head")).remote() for _ in range(2)]
asked = [h.ask.remote(prefix, f"holder {i}", gone) for i, h in enumerate(holders)]
print("asking", flush=True)
sys.stdin.readline()
ray.get(gone.tell.remote())
print("answered", sum(ray.get(asked)), flush=True)
"""
"""Two processes ask as replicas do, under a limiter on another node, until that is lost and each has had as
many answers again as it asks at once."""


@pytest.mark.timeout(480)
def test_a_limiter_moved_from_a_lost_node_allows_no_burst(site: Site):
    """The endpoint counts in windows of 3 s; more calls wait at the limiter than such a window admits."""
    window, at_once = 300, 250
    with endpoint("--speed=20", f"--rpm={window}", "--no-headers", "--latency=2") as url:
        line = [sys.executable, "-c", HOLDERS, site.cluster.address, url, str(12 * window), str(at_once)]
        holders = subprocess.Popen(
            line, env=site.cluster.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert holders.stdout is not None and holders.stdout.readline() == "asking\n"
            until(lambda: get(url)["total"]["answered"] > window)
            (other,) = [node.pid for node in site.cluster.nodes[1:]]
            site.cluster.kill_node(other)
            told, _ = holders.communicate("gone\n", timeout=120)
        finally:
            holders.kill()
            holders.wait()
        seen = get(url)
    answered = int(told.rpartition("answered ")[2].split()[0])  # Ray adds its own text around it.
    assert answered == seen["total"]["answered"] and answered > window + 2 * at_once
    assert seen["refused_429"]["all"] == 0
