import json

from hypothesis import given
from hypothesis import strategies as st

from graphrag_ray.base.connection_settings import Endpoint, Model
from graphrag_ray.base.messages import Usage
from graphrag_ray.llm.accounting import (
    Accounts,
    CallRecord,
    CallTotals,
    CombinedLimits,
    InFlight,
    Latencies,
    StageTiming,
)


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
    busy_s=st.floats(0, 1000),
    unanswered=st.sampled_from([(), (Usage(9, 2),)]),
)
spans = st.dictionaries(
    st.sampled_from(["extract", "report"]), st.builds(StageTiming, counts, st.integers(0, 999)), max_size=2
)
many = st.lists(records, max_size=8)


def accounts(records):
    out = Accounts()
    for r in records:
        out.add(r)
    return out


@given(many, many, many)
def test_merging_does_not_depend_on_grouping_or_order(a, b, c):
    x, y, z = accounts(a), accounts(b), accounts(c)
    merged = Accounts.merged
    assert (
        merged([merged([x, y]), z]) == merged([x, merged([y, z])]) == merged([z, y, x]) == accounts(a + b + c)
    )


@given(many, spans, spans)
def test_accounts_survive_json(a, mine, others):
    before = accounts(a)
    before.merge(Accounts(spans=mine, limits={"m": CombinedLimits(10.0, None)}))
    before.merge(Accounts(spans=others))
    assert Accounts.from_dict(json.loads(json.dumps(before.to_dict()))) == before


def test_merging_does_not_change_its_inputs():
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


def test_one_unknown_price_makes_the_cost_unknown():
    total = accounts([record(cost_pico_usd=2_000_000_000_000), record()]).total
    assert total.cost_usd == 2.000000000005
    assert accounts([record(), record(cost_pico_usd=None), record()]).total.cost_usd is None


def test_retries_429s_failures_and_estimates_are_counted():
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


def test_take_empties_the_accounts():
    x = accounts([record()])
    assert x.take().total.calls == 1
    assert x.take().total.calls == 0


@given(st.lists(st.floats(0.001, 500.0), min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 0.99]))
def test_quantiles_are_within_ten_percent_of_the_exact_value(seconds, share):
    latencies = Latencies()
    for s in seconds:
        latencies.add(s)
    rank = max(1, -(-len(seconds) * int(share * 100) // 100))
    true = sorted(seconds)[rank - 1]
    assert true <= latencies.quantile(share) * 1.000001
    assert latencies.quantile(share) <= true * 1.0906


def test_without_calls_there_is_no_quantile():
    assert Latencies().quantile(0.5) is None


def test_rows_contain_calls_in_flight_and_the_share_of_the_limit():
    endpoints = [Endpoint(requests_per_minute=60, tokens_per_minute=6_000)] * 2
    model = Model(provider="openai", model="m", endpoints=tuple(endpoints))
    one = accounts([record(usage=Usage(500, 100), busy_s=12.0) for _ in range(10)])
    one.merge(Accounts(spans={"extract": StageTiming(30_000, 7)}, limits={"m": CombinedLimits.of(model)}))
    (row,) = one.rows()
    assert (row["seconds"], row["mean_in_flight"], row["peak_in_flight"]) == (30.0, 4.0, 7)
    assert row["share_of_limit"] == 1.0, "6,000 tokens in half a minute, with a limit of 12,000 per minute"


def test_the_share_refers_to_the_tighter_limit():
    used = CallTotals(requests=30, prompt_tokens=100)
    assert CombinedLimits(60, 6_000).share(used, 60.0) == 0.5
    assert CombinedLimits(None, 1_000).share(used, 60.0) == 0.1
    assert CombinedLimits(None, None).share(used, 60.0) is None
    assert CombinedLimits(60, 60).share(used, 0.0) is None


def test_a_model_is_unlimited_if_one_endpoint_is():
    endpoints = (Endpoint(requests_per_minute=60, tokens_per_minute=6_000), Endpoint(tokens_per_minute=1_000))
    assert CombinedLimits.of(Model(provider="openai", model="m", endpoints=endpoints)) == CombinedLimits(
        None, 7_000
    )
    assert CombinedLimits.of(Model()) == CombinedLimits(None, None)


def test_times_of_two_sweeps_are_added_and_the_higher_peak_is_kept():
    both = Accounts.merged(
        [Accounts(spans={"report": StageTiming(5, 9)}), Accounts(spans={"report": StageTiming(7, 3)})]
    )
    assert both.spans == {"report": StageTiming(12, 9)}


def test_accounts_of_an_earlier_version_are_read():
    data = accounts([record()]).to_dict()
    del data["spans"], data["limits"], data["stages"][0]["busy_ms"]
    (row,) = Accounts.from_dict(data).rows()
    assert row["calls"] == 1 and row["seconds"] is None and row["mean_in_flight"] is None


def test_calls_in_flight_are_added_and_subtracted():
    here = InFlight()
    here.add(InFlight(1, 100, 7))
    here.add(InFlight(1, 50, 1))
    here.add(InFlight(1, 100, 7), -1)
    assert here == InFlight.sum([InFlight(1, 50, 1), InFlight()])
