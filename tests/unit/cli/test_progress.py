"""Progress lines of a running sweep."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from graphrag_ray import _observer
from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.cli.console import format_duration
from graphrag_ray.cli.progress import ProgressDisplay, default_observer, progress_line, step_line
from graphrag_ray.engine.executor import SweepProgress
from graphrag_ray.engine.sweep_pace import RATE_WINDOW_S, Amount, RecentRates, StagePace, estimate_remaining_s
from graphrag_ray.llm.accounting import Accounts, CallTotals, CombinedLimits, InFlight


def seen(done: int, seconds: float, tokens: int = 0, pico_usd: int | None = 0, **changes) -> SweepProgress:
    totals = CallTotals(prompt_tokens=tokens, cost_pico_usd=pico_usd)
    accounts = Accounts({("extract", "m"): totals}, limits=changes.pop("limits", {}))
    accounts = changes.pop("accounts", accounts)
    values = {
        "stage": "extract",
        "done": done,
        "total": 1000,
        "failed": 0,
        "in_flight": InFlight(calls=12),
        "accounts": accounts,
        "earlier": Accounts(),
        "seconds": seconds,
    }
    return SweepProgress(**(values | changes))


def line_after(*glimpses: SweepProgress, bar: bool = False) -> str:
    recent = RecentRates()
    for p in glimpses:
        recent.add(p)
    return progress_line(StagePace.of(glimpses[-1], recent), bar=bar)


def test_line_contains_share_rate_and_time_left():
    limits = {"m": CombinedLimits(None, 2_000_000)}
    line = line_after(seen(0, 0.1), seen(1, 0.2), seen(100, 60.0, 200_000, 5 * 10**11, limits=limits))
    assert line.split("  ")[0] == "extract"
    for part in (" 10%  100/1,000", "12 in flight", "of 2,000,000 tokens/min", "$0.5000", "9 min left"):
        assert part in line


def test_rate_and_time_left_follow_the_last_half_minute():
    slow_then_fast = [seen(0, 0.0)]
    slow_then_fast += [seen(s, float(s), s * 10) for s in range(1, 101)]
    slow_then_fast += [seen(100 + 10 * s, 100.0 + s, 1000 + 100 * s) for s in range(1, 41)]
    line = line_after(*slow_then_fast)
    assert "500/1,000" in line and "50 s left" in line and "6,000 tokens/min" in line
    assert RATE_WINDOW_S == 30.0


def test_cost_covers_the_whole_run():
    before = Accounts({("extract", "m"): CallTotals(cost_pico_usd=3 * 10**12)})
    assert "$4.50" in line_after(seen(1, 2.0, 10, 15 * 10**11, earlier=before))
    assert "cost unknown" in line_after(seen(1, 2.0, 10, None, earlier=before))


def test_unknown_total_and_limit_are_omitted():
    line = line_after(seen(7, 10.0, total=None))
    assert "left" not in line and "/" not in line.replace("tokens/min", "") and " of " not in line


def test_bar_is_filled_by_the_share_done():
    assert line_after(seen(500, 1.0), bar=True).count("━") == 10
    assert line_after(seen(1000, 1.0), bar=True).count("╌") == 0


def test_share_matches_the_counts_next_to_it():
    # 640 of 932 items are done. Most others need one more call.
    totals = CallTotals(calls=1_514)
    p = seen(
        640, 30.0, accounts=Accounts({("extract", "m"): totals}), total=932, turns=1_280, expected_turns=2.0
    )
    share, count, items = re.search(r"(\d+)%  ([\d,]+/[\d,]+) calls  (\S+) done", line_after(p)).groups()
    done, total = (int(n.replace(",", "")) for n in count.split("/"))
    assert int(share) == 100 * done // total and items == "640/932"


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
def test_lines_fit_the_terminal(width: int):
    limits = {"m": CombinedLimits(10_000, 2_000_000)}
    big = seen(123_456, 4_000.0, 10**9, None, limits=limits, total=1_669_000, failed=12, expected_turns=2.5)
    recent = RecentRates()
    for p in (seen(0, 0.1, total=1_669_000), big):
        recent.add(p)
    line = progress_line(StagePace.of(big, recent), "extract", width, bar=True)
    assert len(line) < width and line.startswith("extract") and "123,456/1,669,000" in line
    counts = {"levels": {"C0": 13, "C1": 45}, "communities": 68, "modularity": 0.6382, "files": 12}
    ended = step_line("communities", 0.1, counts, False, width).plain
    assert len(ended) <= max(width, 26) and ("C0 13, C1 45" in ended or width < 60)


def test_reused_step_omits_work_counts():
    counts = {"shards": 8, "made": 8, "derived": 4}
    assert "shards 8  made 8  derived 4" in step_line("search", 0.1, counts, False).plain
    assert step_line("search", 0.1, counts, True).plain.endswith("unchanged  shards 8")


def test_second_sweep_of_a_step_restarts_the_count():
    assert "89 s left" in line_after(seen(900, 100.0), seen(1, 0.2), seen(10, 1.0))


LIMIT = 2_000_000
LATENCY_S, CALL_TOKENS = 10.0, 3_400


def breadth_first(seconds: float, items: int = 1_669) -> tuple[SweepProgress, float]:
    """Return an extraction at its rate limit, and the true time left in seconds.

    All first calls come first, then all glean checks, then gleanings for every second item. The other items
    end with their second call.
    """
    calls_in_all = 2.5 * items
    a_second = LIMIT / CALL_TOKENS / 60.0
    answered = int(max(0.0, min(calls_in_all, (seconds - LATENCY_S) * a_second)))
    in_flight = int(min(calls_in_all, seconds * a_second)) - answered
    ended_at_second = max(0, min(items, answered - items)) // 2
    done = ended_at_second + max(0, answered - 2 * items)
    totals = CallTotals(calls=answered, prompt_tokens=answered * CALL_TOKENS)
    for _ in range(min(answered, 20)):
        totals.latency.add(LATENCY_S)
    p = seen(
        done,
        seconds,
        accounts=Accounts(
            {("extract", "m"): totals} if answered else {}, limits={"m": CombinedLimits(1e4, LIMIT)}
        ),
        total=items,
        in_flight=InFlight(in_flight, in_flight * CALL_TOKENS),
        turns=2 * ended_at_second + 3 * (done - ended_at_second),
        expected_turns=2.5,
    )
    return p, calls_in_all / a_second + LATENCY_S - seconds


def test_line_counts_calls_while_no_item_is_done():
    glimpses = [breadth_first(s)[0] for s in range(120)]
    assert glimpses[-1].done == 0
    line = line_after(*glimpses, bar=True)
    assert " 25%  1,068/4,172 calls  0/1,669 done  98 in flight" in line and line.count("━") == 5
    assert "5 min left" in line


@pytest.mark.parametrize("limited", [True, False])
def test_time_left_is_right_for_any_order_of_calls(limited: bool):
    recent = RecentRates()
    for s in range(1, 400):
        p, left_s = breadth_first(float(s))
        if not limited:
            p.accounts.limits.clear()
        recent.add(p)
        estimate = estimate_remaining_s(p, Amount.of(p), recent)
        if estimate is not None:
            assert left_s / 2 <= estimate <= 2 * left_s + 1, (s, estimate, left_s)
        if s > RATE_WINDOW_S + LATENCY_S:
            assert estimate is not None and abs(estimate - left_s) <= 0.2 * left_s + 2.0, (
                s,
                estimate,
                left_s,
            )


def test_last_calls_never_have_zero_time_left():
    totals = CallTotals(calls=1_000)
    for _ in range(1_000):
        totals.latency.add(8.0)
    p = seen(998, 300.0, accounts=Accounts({("report", "m"): totals}), turns=998, expected_turns=1.0)
    early = seen(900, 280.0, accounts=Accounts({("report", "m"): CallTotals(calls=900)}), expected_turns=1.0)
    first = seen(1, 1.0, accounts=Accounts({("report", "m"): CallTotals(calls=1)}), expected_turns=1.0)
    assert "left" not in line_after(first, early, p)  # 98 calls took 20 s, so two take too little
    late = seen(998, 309.0, accounts=p.accounts, turns=998, expected_turns=1.0)
    assert "left" not in line_after(first, early, p, late)  # The pace cannot explain this delay.


RECORDED = json.loads((Path(__file__).parent / "sweeps.json").read_text("utf-8"))
"""Two sweeps of a real run on 150 podcast chunks: extraction with gleanings, and descriptions. The simulated
endpoint has limits, and one call in a hundred takes eight times as long. The last item of the first sweep
waits 70 s for such calls."""
STRAGGLERS = 0.03


@pytest.mark.parametrize("stage", RECORDED)
def test_time_left_of_a_real_sweep_is_within_a_factor_of_about_two(stage: str):
    trace = RECORDED[stage]
    rows = [dict(zip(trace["columns"], row, strict=True)) for row in trace["rows"]]
    most = max(row["done"] for row in rows) * (1 - STRAGGLERS)
    ends = next(row["seconds"] for row in rows if row["done"] >= most)
    recent, estimates = RecentRates(), 0
    for row in rows:
        accounts = Accounts(
            {(stage, "m"): CallTotals(calls=row["calls"], prompt_tokens=row["tokens"])},
            limits={"m": CombinedLimits(trace["rpm"], trace["tpm"])},
        )
        p = seen(
            row["done"], row["seconds"], stage=stage, accounts=accounts, total=row["total"],
            in_flight=InFlight(row["in_flight"], row["in_flight_tokens"]),
            turns=row["turns"], expected_turns=trace["turns_each"],
        )  # fmt: skip
        recent.add(p)
        left = estimate_remaining_s(p, Amount.of(p), recent)
        true = ends - row["seconds"]
        if left is not None and true > 1.5:
            estimates += 1
            assert true / 2.2 - 2 <= left <= 2.2 * true + 2, (row, left, true)
        assert true > -20 or not left, (row, left)  # Long after the end: one call hangs.
    assert estimates >= 5


def test_items_are_counted_if_one_call_answers_several():
    p = seen(500, 10.0, accounts=Accounts({("embed", "m"): CallTotals(calls=3)}))
    line = line_after(seen(1, 0.2), p)
    assert " 50%  500/1,000" in line and "calls" not in line and "10 s left" in line


def test_more_calls_than_expected_keep_the_share_below_one():
    p = seen(
        2, 10.0, accounts=Accounts({("extract", "m"): CallTotals(calls=9_000)}), turns=9, expected_turns=2.5
    )
    share = Amount.of(p).share
    assert share is not None and share < 1.0


def test_quiet_prints_nothing(capsys):
    with default_observer(quiet=True) as observer:
        observer.step_started("extract")
        observer.progress(seen(1, 100.0))
        observer.message("hello")
        observer.step_ended("extract", 1.0, {"entities": 1}, reused=False)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_finished_step_lists_its_counts(capsys):
    ProgressDisplay().step_ended(
        "communities", 1.2, {"components": {"count": 60, "largest_share": 0.8134}}, False
    )
    assert "60 components (largest: 81% of entities)" in capsys.readouterr().err
    ProgressDisplay().step_ended(
        "communities", 1.2, {"components": {"count": 1, "largest_share": 1.0}}, False
    )
    assert capsys.readouterr().err.endswith("1 component\n")


def test_durations_are_readable():
    assert [format_duration(s) for s in (5, 89, 120, 5399, 9000)] == [
        "5 s",
        "89 s",
        "2 min",
        "90 min",
        "2.5 h",
    ]


def test_hint_about_unknown_price_names_the_model_and_is_printed_once(capsys):
    big = {"big": {"provider": "openai", "model": "m"}}
    settings = parse_settings({"models": {"default": {}, **big}, "stages": {"extract": {"model": "big"}}})
    with ProgressDisplay() as observer:
        observer.run_started(settings)
        observer.progress(seen(1, 2.0, 10, None))
        observer.progress(seen(2, 3.0, 20, None))
    assert capsys.readouterr().err.count("--set models.big.price.input_usd_per_mtok=…") == 1


def test_names_build_is_not_mistaken_for_a_missing_model(capsys):
    models = {"default": {"provider": "openai", "model": "m"}}
    ProgressDisplay().run_started(Settings.model_validate({"build": "names", "models": models}))
    printed = capsys.readouterr().err
    assert "No model is configured" not in printed and "no language model is called" in printed
    ProgressDisplay().run_started(Settings())
    assert "No model is configured" in capsys.readouterr().err


class Cells(ModuleType):
    """Replaces IPython.display and stores the final content of each output."""

    def __init__(self) -> None:
        super().__init__("IPython.display")
        self.shown: dict[str, str] = {}

    def display(self, data: dict[str, str], *, raw: bool, display_id: str, update: bool) -> None:
        assert raw and data.keys() == {"text/plain"} and update == (display_id in self.shown)
        self.shown[display_id] = data["text/plain"]


def test_notebook_has_a_single_updated_output(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr("graphrag_ray.cli.progress.REDRAW_INTERVAL_S", 0.0)
    cells = Cells()
    for name in ("ipykernel", "IPython"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "IPython.display", cells)
    with _observer(None) as observer:
        observer.step_started("extract")
        observer.progress(seen(500, 1.0))
        assert "500/1,000" in next(iter(cells.shown.values()))
        observer.message("<b>not HTML</b>")
        observer.step_ended("extract", 1.0, {"entities": 1}, reused=False)
    (shown,) = cells.shown.values()
    assert re.sub(" +", " ", shown) == "<b>not HTML</b>\nextract 1.0 s entities 1\n"
    assert capsys.readouterr().err == ""


def test_script_shows_progress_on_a_terminal_or_on_request(capsys):
    for wanted, shown in ((None, False), (False, False), (True, True)):
        with _observer(wanted) as observer:
            observer.step_ended("extract", 1.0, {}, reused=False)
        assert ("extract" in capsys.readouterr().err) == shown
