"""What a person sees of a running sweep."""

from __future__ import annotations

from graphrag_ray.engine.executor import Progress
from graphrag_ray.engine.pace import RATE_OVER_S, Amount, Pace, Recent, seconds_left
from graphrag_ray.llm.accounting import Accounts, InFlight, Limits, Totals
from graphrag_ray.terminal.progress import Observer, duration, progress_line


def seen(done: int, seconds: float, tokens: int = 0, pico_usd: int | None = 0, **changes) -> Progress:
    totals = Totals(prompt_tokens=tokens, cost_pico_usd=pico_usd)
    accounts = Accounts({("extract", "m"): totals}, limits=changes.pop("limits", {}))
    accounts = changes.pop("accounts", accounts)
    values = {
        "stage": "extract",
        "done": done,
        "total": 1000,
        "failed": 0,
        "in_flight": InFlight(calls=12),
        "accounts": accounts,
        "before": Accounts(),
        "seconds": seconds,
    }
    return Progress(**(values | changes))


def line_after(*glimpses: Progress, bar: bool = False) -> str:
    recent = Recent()
    for p in glimpses:
        recent.note(p)
    return progress_line(Pace.of(glimpses[-1], recent), bar)


def test_a_line_says_how_far_how_fast_and_how_long():
    line = line_after(seen(100, 60.0, 200_000, 5 * 10**11, limits={"m": Limits(None, 2_000_000)}))
    assert line.split("  ")[0] == "extract"
    for part in ("100/1,000", "12 in flight", "200,000 of 2,000,000 tokens/min", "$0.5000", "9 min left"):
        assert part in line


def test_rate_and_time_left_follow_the_last_half_minute():
    slow_then_fast = [seen(0, 0.0)]
    slow_then_fast += [seen(s, float(s), s * 10) for s in range(1, 101)]
    slow_then_fast += [seen(100 + 10 * s, 100.0 + s, 1000 + 100 * s) for s in range(1, 41)]
    line = line_after(*slow_then_fast)
    assert "500/1,000" in line and "50 s left" in line and "6,000 tokens/min" in line
    assert RATE_OVER_S == 30.0


def test_the_cost_is_that_of_the_whole_run():
    before = Accounts({("extract", "m"): Totals(cost_pico_usd=3 * 10**12)})
    assert "$4.50" in line_after(seen(1, 2.0, 10, 15 * 10**11, before=before))
    assert "cost unknown" in line_after(seen(1, 2.0, 10, None, before=before))


def test_without_a_total_or_a_limit_nothing_is_made_up():
    line = line_after(seen(7, 10.0, total=None))
    assert "left" not in line and "/" not in line.replace("tokens/min", "") and " of " not in line


def test_the_bar_is_as_full_as_the_stage():
    assert line_after(seen(500, 1.0), bar=True).count("━") == 10
    assert line_after(seen(1000, 1.0), bar=True).count("╌") == 0


def test_another_sweep_of_a_step_starts_counting_anew():
    assert "90 s left" not in line_after(seen(900, 100.0), seen(10, 1.0)) and "99 s" not in line_after(
        seen(900, 100.0), seen(10, 1.0)
    )
    assert "2 min left" in line_after(seen(900, 100.0), seen(10, 1.0))


LIMIT = 2_000_000
LATENCY_S, CALL_TOKENS = 10.0, 3_400


def breadth_first(seconds: float, items: int = 1_669) -> tuple[Progress, float]:
    """An extraction at its limit: all first calls, then all gleaning questions, then gleanings for every
    second item, which ends with its second call else. And the seconds that are left in truth."""
    calls_in_all = 2.5 * items
    a_second = LIMIT / CALL_TOKENS / 60.0
    answered = int(max(0.0, min(calls_in_all, (seconds - LATENCY_S) * a_second)))
    in_flight = int(min(calls_in_all, seconds * a_second)) - answered
    ended_at_second = max(0, min(items, answered - items)) // 2
    done = ended_at_second + max(0, answered - 2 * items)
    totals = Totals(calls=answered, prompt_tokens=answered * CALL_TOKENS)
    for _ in range(min(answered, 20)):
        totals.latency.add(LATENCY_S)
    p = seen(
        done,
        seconds,
        accounts=Accounts({("extract", "m"): totals} if answered else {}, limits={"m": Limits(1e4, LIMIT)}),
        total=items,
        in_flight=InFlight(in_flight, in_flight * CALL_TOKENS),
        turns=2 * ended_at_second + 3 * (done - ended_at_second),
        turns_each=2.5,
    )
    return p, calls_in_all / a_second + LATENCY_S - seconds


def test_while_no_item_is_done_the_line_shows_that_calls_are_answered():
    glimpses = [breadth_first(s)[0] for s in range(120)]
    assert glimpses[-1].done == 0
    line = line_after(*glimpses, bar=True)
    assert "0/1,669  1,068 calls  98 in flight" in line
    assert " 25%" in line and line.count("━") == 5
    assert "5 min left" in line


def test_the_time_left_is_right_from_the_first_second_on_whatever_the_order_of_calls():
    recent = Recent()
    for s in range(1, 400):
        p, left_s = breadth_first(float(s))
        recent.note(p)
        told = seconds_left(p, Amount.of(p), recent)
        assert told is not None and abs(told - left_s) <= 0.15 * left_s + 12.0, (s, told, left_s)


def test_without_a_limit_the_pace_tells_the_time_left():
    recent = Recent()
    for s in range(1, 300):
        p, left_s = breadth_first(float(s))
        p.accounts.limits.clear()
        recent.note(p)
        told = seconds_left(p, Amount.of(p), recent)
        if s > RATE_OVER_S + LATENCY_S:
            assert told is not None and abs(told - left_s) <= 0.15 * left_s + 12.0, (s, told, left_s)


def test_the_last_calls_are_not_said_to_take_no_time():
    totals = Totals(calls=1_000)
    for _ in range(1_000):
        totals.latency.add(8.0)
    p = seen(998, 300.0, accounts=Accounts({("report", "m"): totals}), turns=998, turns_each=1.0)
    early = seen(900, 280.0, accounts=Accounts({("report", "m"): Totals(calls=900)}), turns_each=1.0)
    assert "0 s left" not in line_after(early, p) and "8 s left" in line_after(early, p)


def test_where_a_call_answers_many_items_these_are_counted():
    p = seen(500, 10.0, accounts=Accounts({("embed", "m"): Totals(calls=3)}))
    line = line_after(p)
    assert " 50%" in line and "calls" not in line and "10 s left" in line


def test_a_count_beyond_what_was_expected_is_not_more_than_all():
    p = seen(2, 10.0, accounts=Accounts({("extract", "m"): Totals(calls=9_000)}), turns=9, turns_each=2.5)
    share = Amount.of(p).share
    assert share is not None and share < 1.0


def test_quiet_says_nothing(capsys):
    with Observer(quiet=True) as observer:
        observer.step_started("extract")
        observer.progress(seen(1, 100.0))
        observer.note("hello")
        observer.step_ended("extract", 1.0, {"entities": 1}, reused=False)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_a_step_that_ended_tells_its_counts_in_words(capsys):
    Observer().step_ended("communities", 1.2, {"components": {"count": 60, "largest_share": 0.8134}}, False)
    assert "60 components, the largest 81%" in capsys.readouterr().err
    Observer().step_ended("communities", 1.2, {"components": {"count": 1, "largest_share": 1.0}}, False)
    assert capsys.readouterr().err.endswith("1 component\n")


def test_durations_are_said_as_people_say_them():
    assert [duration(s) for s in (5, 89, 120, 5399, 9000)] == ["5 s", "89 s", "2 min", "90 min", "2.5 h"]
