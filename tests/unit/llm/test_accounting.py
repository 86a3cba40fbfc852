import json

from hypothesis import given, settings
from hypothesis import strategies as st

from graphrag_ray.llm.accounting import Accounts, CallRecord, Latencies
from graphrag_ray.messages import Usage


def record(**changes):
    values = {
        "stage": "extract",
        "prompt": "extract",
        "model_id": "m",
        "endpoint": "host",
        "status": "ok",
        "usage": Usage(100, 20, 10),
        "cost_pico_usd": 5,
        "latency_s": 1.0,
        "attempts": 1,
        "rate_limited": 0,
    }
    return CallRecord(**(values | changes))


counts = st.integers(0, 10**6)
records = st.builds(
    record,
    stage=st.sampled_from(["extract", "report"]),
    model_id=st.sampled_from(["m", "n"]),
    status=st.sampled_from(["ok", "transient", "permanent", "fatal", "cancelled"]),
    usage=st.builds(Usage, counts, counts, counts, st.booleans()),
    cost_pico_usd=st.none() | counts,
    latency_s=st.floats(0, 1000),
    attempts=st.integers(1, 9),
    rate_limited=st.integers(0, 9),
)
many = st.lists(records, max_size=8)


def accounts(records):
    out = Accounts()
    for r in records:
        out.add(r)
    return out


@given(many, many, many)
@settings(max_examples=60, deadline=None)
def test_merging_does_not_depend_on_grouping_or_order(a, b, c):
    x, y, z = accounts(a), accounts(b), accounts(c)
    merged = Accounts.merged
    assert (
        merged([merged([x, y]), z]) == merged([x, merged([y, z])]) == merged([z, y, x]) == accounts(a + b + c)
    )


@given(many)
@settings(max_examples=60, deadline=None)
def test_accounts_survive_json(a):
    before = accounts(a)
    assert Accounts.from_dict(json.loads(json.dumps(before.to_dict()))) == before


def test_merging_leaves_what_was_merged_alone():
    x = accounts([record()])
    Accounts.merged([x, x]).add(record())
    assert x.total.calls == 1


def test_each_stage_and_model_has_its_own_row():
    rows = list(accounts([record(), record(stage="report"), record(model_id="n"), record()]).rows())
    assert [(r["stage"], r["model"], r["calls"]) for r in rows] == [
        ("extract", "m", 2),
        ("extract", "n", 1),
        ("report", "m", 1),
    ]


def test_one_unknown_price_makes_the_cost_unknown_not_smaller():
    total = accounts([record(cost_pico_usd=2_000_000_000_000), record()]).total
    assert total.cost_usd == 2.000000000005
    assert accounts([record(), record(cost_pico_usd=None), record()]).total.cost_usd is None


def test_retries_429s_failures_and_guesses_are_counted():
    total = accounts(
        [
            record(attempts=4, rate_limited=2),
            record(status="permanent", usage=Usage(), cost_pico_usd=0),
            record(usage=Usage(1, 1, reported=False)),
        ]
    ).total
    assert (total.calls, total.requests, total.retries) == (3, 6, 3)
    assert (total.rate_limited, total.failed, total.unreported) == (2, 1, 1)
    assert total.total_tokens == 122


def test_taking_leaves_nothing_behind():
    x = accounts([record()])
    assert x.take().total.calls == 1
    assert x.take().total.calls == 0


@given(st.lists(st.floats(0.001, 500.0), min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 0.99]))
@settings(max_examples=60, deadline=None)
def test_a_quantile_is_within_a_tenth_of_the_true_one(seconds, share):
    latencies = Latencies()
    for s in seconds:
        latencies.add(s)
    rank = max(1, -(-len(seconds) * int(share * 100) // 100))
    true = sorted(seconds)[rank - 1]
    assert true <= latencies.quantile(share) * 1.000001
    assert latencies.quantile(share) <= true * 1.0906


def test_without_calls_there_is_no_quantile():
    assert Latencies().quantile(0.5) is None
