"""The report page of a comparison in a real browser."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from headless_browser import CHROMIUM, HOW_TO_INSTALL, BrowserPage, browser_page
from sample_evaluation import sample, table

from graphrag_ray.evaluate import report_page as page_module
from graphrag_ray.evaluate.comparison import Comparison
from graphrag_ray.evaluate.report_page import report_page

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(CHROMIUM is None, reason=HOW_TO_INSTALL)]

HOSTILE = (
    "<script>hacked = 1</script></script><script>hacked = 1</script><!-- <script> "
    "\"'><img src=x onerror=hacked=1><svg onload=hacked=1><iframe src=https://evil.example></iframe>"
    "<style>@import 'https://evil.example'</style><base href=https://evil.example> \u2028 \u202e "
    "{{hacked=1}} ${hacked=1} "
    "[x](javascript:hacked=1) ![x](https://evil.example/p.png) <https://example.org>\n\n|a|\n|-:|\n|1|"
)

UNWANTED = (
    "img, iframe, base, object, embed, form, link, main script, main style, [onerror], [onload], [style]"
)

Visit = Callable[[BrowserPage], Awaitable[Any]]


def visit(tmp_path: Path, evaluation: Comparison, visited: Visit) -> Any:
    """Visit the page. The browser must report no errors and request nothing but the page."""
    file = tmp_path / "report.html"
    file.write_bytes(report_page(evaluation).encode("utf-8"))

    async def visiting() -> Any:
        async with browser_page(tmp_path / "profile") as page:
            await page.open(file.as_uri())
            found = await visited(page)
            assert page.complaints == []
            assert [*page.requests.values()] == [file.as_uri()]
            return found

    return asyncio.run(visiting())


async def texts(page: BrowserPage, selector: str) -> list[str]:
    """Return the texts of the visible elements."""
    found = f"[...document.querySelectorAll({json.dumps(selector)})].filter((e) => e.checkVisibility())"
    return list(await page.run(f"{found}.map((e) => e.innerText)"))


async def choose(page: BrowserPage, id_: str, value: int) -> None:
    place = f"document.getElementById({json.dumps(id_)})"
    await page.run(f"{place}.value = {value}; {place}.dispatchEvent(new Event('change'))")


def test_question_and_pair_can_be_chosen_and_read(tmp_path: Path):
    async def visited(page: BrowserPage) -> None:
        assert await texts(page, "#question-text") == ["What are the themes of part 0?"]
        assert await texts(page, "#left-name, #right-name") == ["C0", "TS"]
        assert await texts(page, ".answer") == [
            "Themes\n\nC0 of part 0: source",
            "No answer. the endpoint gave up",
        ]
        assert (await texts(page, "#verdicts li"))[:2] == [
            "No verdict (answer 1 was C0)\n\nno JSON in the reply",
            "C0 wins (answer 1 was TS)\n\nReason 1 for comprehensiveness, question 0.",
        ]
        assert await texts(page, "#verdicts .tally") == ["C0 wins: 1 · No verdict: 1"] * 2
        await page.run("document.querySelectorAll('[name=question]')[2].click()")
        await choose(page, "right", 2)
        assert await texts(page, "#question-text") == ["What are the themes of part 2?"]
        assert await texts(page, ".answer") == [
            f"Themes\n\n{name} of part 2: source" for name in ("C0", "SS")
        ]
        assert await texts(page, "#verdicts h4") == ["comprehensiveness", "directness"]
        assert await texts(page, "#verdicts .tally") == ["SS wins: 1 · Tie: 1"] * 2
        assert (await texts(page, "#verdicts li"))[1].startswith("SS wins (answer 1 was SS)")

    visit(tmp_path, sample(), visited)


def test_two_selects_never_show_the_same_condition(tmp_path: Path):
    async def visited(page: BrowserPage) -> None:
        await choose(page, "left", 1)
        assert await texts(page, "#left-name, #right-name") == ["TS", "C0"]
        assert (await texts(page, "#verdicts strong"))[1] == "C0 wins"
        await choose(page, "right", 1)
        assert await texts(page, "#left-name, #right-name") == ["C0", "TS"]

    visit(tmp_path, sample(), visited)


def test_clicking_a_rate_shows_its_pair(tmp_path: Path):
    async def visited(page: BrowserPage) -> None:
        await page.run("document.querySelector('td[data-pair=\"2 1\"]').click()")
        assert await texts(page, "#left-name, #right-name") == ["SS", "TS"]
        assert await page.run("[left.value, right.value]") == ["2", "1"]

    visit(tmp_path, sample(), visited)


def test_questions_can_be_searched_and_browsed_by_key(tmp_path: Path):
    async def visited(page: BrowserPage) -> None:
        await page.run("document.getElementById('search').focus()")
        await page.call("Input.insertText", text="THEMES 1")
        assert await texts(page, "#found") == ["3 of 12 questions"]
        assert [text[-2:] for text in await texts(page, "fieldset label")] == ["1?", "0?", "1?"]
        # A search selects nothing else. The keys browse the matches.
        assert await texts(page, "#question-text") == ["What are the themes of part 0?"]
        await page.press("Tab")
        await page.press("ArrowDown")
        assert (await texts(page, "#question-text"))[0] in {
            f"What are the themes of part {n}?" for n in (1, 10, 11)
        }

    visit(tmp_path, sample(questions=12), visited)


def test_one_plot_is_shown_at_a_time(tmp_path: Path):
    async def visited(page: BrowserPage) -> None:
        assert await texts(page, "figcaption") == ["comprehensiveness"]
        await choose(page, "plot-criterion", 1)
        assert await texts(page, "figcaption") == ["directness"]

    visit(tmp_path, sample(), visited)


def test_missing_data_is_explained_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def visited(page: BrowserPage) -> None:
        told = "This page does not include the answers to this question."
        assert await texts(page, ".answer") == [told] * 2
        assert (await texts(page, "#verdicts li"))[1] == "C0 wins (answer 1 was TS)"
        await choose(page, "right", 2)
        assert await texts(page, "#verdicts") == ["The judge did not compare these two answers."]

    monkeypatch.setattr(page_module, "MAX_BYTES", 0)
    judged = sample().tables["judgements"]
    alone = table(judged.schema, [row for row in judged.to_pylist() if row["second"] == "TS"])
    visit(tmp_path, sample(judgements=alone), visited)


def hostile() -> Comparison:
    """Return a comparison with HOSTILE in every field."""
    names, criteria = (
        [f"{HOSTILE} {n}" for n in range(3)],
        {f"{HOSTILE} by": HOSTILE, f"{HOSTILE} too": HOSTILE},
    )
    renamed = dict(zip(sample().criteria, criteria, strict=True))
    free = ("reason", "error", "text", "question", "question_id", "settings", "method")
    made = sample(
        names, title=HOSTILE, description=HOSTILE, judge=HOSTILE, warnings=[HOSTILE], criteria=criteria
    )
    tables = {
        name: table(
            made.tables[name].schema,
            [
                {
                    k: f"{HOSTILE}{v}" if k in free and v is not None else renamed.get(v, v)
                    for k, v in row.items()
                }
                for row in made.tables[name].to_pylist()
            ],
        )
        for name in (
            "conditions",
            "win_rates",
            "reliability",
            "judgements",
            "answers",
            "agreement",
            "count_tests",
        )
    }
    return sample(
        names,
        **{name: getattr(made, name) for name in ("title", "description", "judge", "warnings", "criteria")},
        claim_counts=made.tables["claim_counts"],
        **tables,
    )


def test_hostile_texts_are_displayed_harmlessly(tmp_path: Path):
    async def visited(page: BrowserPage) -> None:
        for question in range(3):
            await page.run(f"document.querySelectorAll('[name=question]')[{question}].click()")
            for one, other in ((0, 1), (2, 0), (1, 2)):
                await choose(page, "left", one)
                await choose(page, "right", other)
                assert HOSTILE[:60] in (await texts(page, "#verdicts li p"))[0]
                assert "<script>hacked = 1</script>" in "".join(await texts(page, ".answer"))
                assert await page.run(f"document.querySelectorAll('{UNWANTED}').length") == 0
                links = await page.run("[...document.querySelectorAll('main a')].map((link) => link.host)")
                assert set(links) == {"example.org"}
        await asyncio.sleep(0.5)
        assert await page.run("typeof hacked") == "undefined"

    visit(tmp_path, hostile(), visited)


def test_content_policy_blocks_foreign_scripts_styles_and_requests(tmp_path: Path):
    async def visited(page: BrowserPage) -> list[str]:
        await page.run(
            "const script = document.createElement('script'); script.textContent = 'hacked = 1';"
            "document.body.append(script);"
            "const html = '<img src=https://evil.example/p onerror=hacked=1><p style=color:red id=red>';"
            "document.body.insertAdjacentHTML('beforeend', html);"
            "fetch('https://evil.example/f').catch(() => 0)"
        )
        await asyncio.sleep(0.5)
        assert await page.run("typeof hacked") == "undefined"
        assert await page.run("getComputedStyle(document.getElementById('red')).color") != "rgb(255, 0, 0)"
        assert page.complaints
        complaints, page.complaints = page.complaints, []
        return complaints

    assert "Content Security Policy" in "".join(visit(tmp_path, sample(), visited))


@pytest.mark.parametrize("width", [320, 420, 1280])
def test_the_page_never_scrolls_sideways(tmp_path: Path, width: int):
    async def visited(page: BrowserPage) -> None:
        await page.look(width, 900)
        await page.run("document.querySelectorAll('details').forEach((e) => (e.open = true))")
        assert await page.run("document.documentElement.scrollWidth") <= width

    long = "W" * 80
    visit(
        tmp_path, sample([f"{long}{n}" for n in range(12)], questions=2, title=long, warnings=[long]), visited
    )


def test_controls_have_accessible_names(tmp_path: Path):
    async def visited(page: BrowserPage) -> set[tuple[str, str]]:
        await page.call("Accessibility.enable")
        nodes = (await page.call("Accessibility.getFullAXTree"))["nodes"]
        return {
            (n["role"]["value"], n["name"]["value"])
            for n in nodes
            if "role" in n and n.get("name", {}).get("value")
        }

    found = visit(tmp_path, sample(), visited)
    assert {
        *[("combobox", "Condition"), ("combobox", "Compared with"), ("combobox", "Criterion")],
        *[("searchbox", "Search the questions"), ("radio", "What are the themes of part 1?")],
        *[
            ("table", "comprehensiveness: win rates of rows over columns"),
            ("cell", "66 significantly better"),
        ],
    } <= found
