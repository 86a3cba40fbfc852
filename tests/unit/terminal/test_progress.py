"""What a person sees of a running sweep."""

from __future__ import annotations

from graphrag_ray.engine.executor import Progress
from graphrag_ray.llm.accounting import Accounts, InFlight, Limits, Totals
from graphrag_ray.terminal.progress import RATE_OVER_S, Observer, Recent, duration, progress_line


def seen(done: int, seconds: float, tokens: int = 0, pico_usd: int | None = 0, **changes) -> Progress:
    totals = Totals(prompt_tokens=tokens, cost_pico_usd=pico_usd)
    accounts = Accounts({("extract", "m"): totals}, limits=changes.pop("limits", {}))
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
    return progress_line(glimpses[-1], recent, bar)


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
