"""The number of LLM workers, and their nodes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.connection_settings import Endpoint, Model
from graphrag_ray.engine.model_access import Models
from graphrag_ray.engine.ray.worker_pool import MAX_WORKERS, MIN_WORKERS, Node, workers_on

OFFLINE = Models({"default": Model(provider="offline")})


def models(*endpoints: Endpoint) -> Models:
    return Models({"default": Model(provider="openai", model="m", endpoints=list(endpoints or [Endpoint()]))})


def nodes(n: int, cpus: float = 16.0) -> list[Node]:
    return [Node(f"n{i}", cpus) for i in range(n)]


def test_few_nodes_have_two_workers_each_regardless_of_the_limits():
    for limited in (models(), models(Endpoint(max_in_flight=1)), models(Endpoint(requests_per_minute=10))):
        assert workers_on(nodes(1), limited) == {"n0": 2}
        assert workers_on(nodes(4), limited) == {f"n{i}": 2 for i in range(4)}


def test_low_limits_start_few_workers_even_on_many_nodes():
    found = workers_on(nodes(200), models(Endpoint(requests_per_minute=10_000, tokens_per_minute=2e6)))
    assert sum(found.values()) == MIN_WORKERS and max(found.values()) == 1


@pytest.mark.parametrize(
    ("endpoint", "workers"),
    [
        (Endpoint(requests_per_minute=300_000), 23),
        (Endpoint(tokens_per_minute=200e6), 15),
        (Endpoint(max_in_flight=2_000), 18),
        (Endpoint(requests_per_minute=300_000, max_in_flight=2_000), 18),
        (Endpoint(requests_per_minute=1e9), MAX_WORKERS),
        (Endpoint(), MAX_WORKERS),
    ],
)
def test_higher_limits_start_more_workers_up_to_a_bound(endpoint, workers):
    assert sum(workers_on(nodes(200), models(endpoint)).values()) == workers


def test_a_configured_number_of_workers_overrides_the_limits():
    assert workers_on(nodes(50), models(Endpoint(max_in_flight=1)), per_node=3) == {
        f"n{i}": 3 for i in range(50)
    }


def test_the_offline_engine_has_a_worker_per_core():
    assert workers_on([Node("a", 4), Node("b", 16), Node("c", 0.5)], OFFLINE) == {"a": 4, "b": 16, "c": 1}


@pytest.mark.parametrize("some", [models(), OFFLINE])
def test_a_node_without_cpus_has_no_workers_unless_all_nodes_lack_them(some):
    head = Node("head", 0)
    assert workers_on([head, Node("a", 2)], some, existing={"head": 2}) == {"a": 2}
    assert workers_on([head], some).get("head")
    assert workers_on([], some) == {}


def test_existing_workers_stay_and_new_ones_go_to_the_nodes_with_the_fewest():
    limited = models(Endpoint(max_in_flight=1))
    assert workers_on(nodes(3), limited, existing={"n1": 2}) == {"n0": 2, "n1": 2, "n2": 2}
    before = workers_on(nodes(4), limited)
    assert workers_on(nodes(6), limited, existing=before) == before | {"n4": 0, "n5": 0}
    lost = {id_: n for id_, n in before.items() if id_ != "n0"}
    assert workers_on(nodes(6)[1:], limited, existing=lost) == lost | {"n4": 1, "n5": 1}


def test_if_there_are_fewer_workers_than_nodes_the_first_nodes_get_them():
    found = workers_on(nodes(MIN_WORKERS + 2), models(Endpoint(max_in_flight=1)))
    assert [id_ for id_, n in found.items() if not n] == [f"n{MIN_WORKERS}", f"n{MIN_WORKERS + 1}"]


cluster = st.dictionaries(
    st.integers(0, 30).map(str), st.sampled_from([0.0, 0.5, 1.0, 2.0, 64.0]), max_size=20
)
limits = st.sampled_from([models(), models(Endpoint(max_in_flight=9)), OFFLINE])


@given(st.lists(cluster, min_size=1, max_size=5), limits, st.sampled_from([None, 1, 3]))
def test_the_total_does_not_depend_on_how_nodes_came_and_went(seen, some, per_node):
    having: dict[str, int] = {}
    for found in seen:
        there = [Node(id_, cpus) for id_, cpus in found.items()]
        having = workers_on(there, some, per_node, {id_: n for id_, n in having.items() if id_ in found})
        rebuilt = workers_on(there, some, per_node)
        assert sum(having.values()) == sum(rebuilt.values())
        for node in there:
            assert having.get(node.id, 0) <= (per_node or some.workers_per_node(int(node.cpus)))
        assert bool(sum(having.values())) == bool(there)
        assert workers_on(there, some, per_node, having) == having
        if some.online:
            spread = Counter(rebuilt.values())
            assert max(spread, default=0) - min(spread, default=0) <= 1
