"""`graphrag-ray evaluate`: compare search methods using metrics."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, astuple, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from graphrag_ray.base.declarations import STAGE_SETTING_KEYS
from graphrag_ray.base.errors import EXIT_FAILED_ITEMS, UsageError
from graphrag_ray.base.wording import escape_control, plural, price_hint
from graphrag_ray.cli import console, options
from graphrag_ray.cli.command_line import Command, Commands
from graphrag_ray.cli.options import IndexOptions
from graphrag_ray.evaluate import CRITERIA, JUDGE_PROTOCOLS, METRICS, REPLICATES

if TYPE_CHECKING:
    import pyarrow as pa

    from graphrag_ray.evaluate.comparison import Comparison
    from graphrag_ray.evaluate.conditions import EvaluationCondition
    from graphrag_ray.evaluate.evaluation_run import EvaluationRun
    from graphrag_ray.query.ask import Index
    from graphrag_ray.query.question_files import BatchQuestion

_COUNTS = ("questions", "with_answers", "with_documents")  # Columns of the table summary.
_TITLES = {
    "reliability": "Reliability of the judge",
    "conditions": "Conditions",
    "qa_conditions": "Conditions",
    "indexes": "Indexes",
    "judging": "Judging",
    "qa_judging": "Judging",
    "claim_counts": "Claims per answer",
    "count_tests": "Differences in claims and clusters",
    "agreement": "Agreement with the judge",
}
_PACKAGES = ("scipy", "nltk", "pandas", "jinja2")
_OFFLINE_JUDGE = (
    "NO LANGUAGE MODEL JUDGED. The offline engine counted words and names instead. The numbers show that the "
    "pipeline works, but say nothing about the quality of the answers."
)

EVALUATE_COMMANDS = {
    "Head to head": {
        "questions": "Generate questions about the corpus as a whole.",
        "estimate": "Predict the cost of a comparison.",
        "compare": "Let a judge compare the answers of several conditions.",
        "claims": "Count the factual claims in answers.",
    },
    "Known answers and communities": {
        "qa": "Score answers and retrieval against known answers.",
        "communities": "Measure the quality of each community level.",
    },
}


@click.group(
    cls=Commands,
    module=__name__,
    listed=EVALUATE_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def evaluate() -> None:
    """Compare search methods on your own corpus, with sound statistics.

    All model replies are stored in the folder --out. After an interruption, run the same command again to
    continue. If you add a condition or criterion, you pay only for the new calls.

    \b
    Examples:
      graphrag-ray evaluate questions --root ./my-index --out questions.csv
      graphrag-ray evaluate compare --root ./my-index --questions questions.csv \\
          --condition C0=global:C0 --condition vector=vector --out ./evaluation --report page.html
    """


def _questions(help_: str) -> Callable[..., Any]:
    return click.option("--questions", "questions_url", metavar="FILE", required=True, help=help_)


_conditions = click.option(
    "--condition",
    "conditions",
    multiple=True,
    metavar="NAME=SPEC",
    help="A condition to compare; repeatable. SPEC is METHOD[:LEVEL][,index=URL][,prompts=DIR]"
    "[,setting=value…], or a file of answers (.csv, .json, .jsonl, .parquet).",
)
_question_options = options.combine(
    options.settings,
    _questions(
        "A .csv, .json, .jsonl or .parquet file with a column `question` (optional: `question_id`), or of a "
        "published data set."
    ),
    _conditions,
)
_judge_options = options.combine(
    click.option(
        "--criterion",
        "criteria",
        multiple=True,
        default=CRITERIA,
        metavar="NAME",
        help=f"Criterion for the judge; repeatable. Default: {', '.join(CRITERIA)}. Also available: overall, "
        "the four with `_by_content` (length and concision do not count), and the text files in the folder "
        "`criteria` of prompts_dir.",
    ),
    click.option(
        "--replicates", type=int, default=REPLICATES, show_default=True, help="Verdicts per pair of answers."
    ),
    click.option(
        "--judge-protocol",
        "protocol",
        type=click.Choice(JUDGE_PROTOCOLS),
        default=JUDGE_PROTOCOLS[0],
        show_default=True,
        help="Call the judge for each criterion, or once for all of them and an overall winner.",
    ),
    click.option("--claims", is_flag=True, help="Also count the factual claims in the answers."),
)
_run_options = options.combine(
    click.option("--ray", is_flag=True, help="Call models from Ray instead of this process."),
    click.option("--address", metavar="ADDRESS", help="Call models from this Ray cluster."),
    click.option("-q", "--quiet", is_flag=True, help="Print only results and errors."),
    options.as_json,
)
_out = click.option(
    "--out", metavar="URL", default="evaluation", show_default=True, help="Folder for results."
)


_report = click.option("--report", metavar="FILE", help="Also write a self-contained .html page.")


def _check_page(report: str | None) -> None:
    if report is not None and not report.lower().endswith((".html", ".htm")):
        raise UsageError(f"--report {report!r} must be an .html file")


def _open(opts: IndexOptions) -> Index:
    """Open the newest snapshot. Raises UsageError if packages are missing; import their users later."""
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise UsageError(f"`evaluate` needs {', '.join(missing)}: pip install 'graphrag-ray[evaluate]'")
    return opts.index()


def _read_inputs(
    opts: IndexOptions, url: str, conditions: Iterable[str]
) -> tuple[Index, list[EvaluationCondition], list[BatchQuestion], list[str]]:
    """Open the indexes and read questions. Returns (index, conditions, questions, warnings)."""
    index = _open(opts)
    from graphrag_ray.evaluate.evaluation_files import read_unique_questions

    questions, warnings = read_unique_questions(url, index.settings.storage.fsspec_options(url))
    return index, _open_indexes(opts, conditions), questions, warnings


def _open_indexes(opts: IndexOptions, conditions: Iterable[str]) -> list[EvaluationCondition]:
    """Parse conditions, and open the indexes that they name with the options of the command."""
    from graphrag_ray.evaluate.conditions import parse_condition

    parsed = map(parse_condition, conditions)
    return [replace(c, index=replace(opts, root=str(c.index)).index()) if c.index else c for c in parsed]


def _running(
    index: Index, out: str, note: str, as_json: bool, ray: bool, address: str | None, quiet: bool
) -> AbstractContextManager[EvaluationRun]:
    from graphrag_ray.cli.progress import default_observer
    from graphrag_ray.evaluate.evaluation_run import evaluation_run

    observer = default_observer(quiet=quiet or as_json)
    return evaluation_run(index, out, note, on_ray=ray, address=address, observer=observer)


def _print_tables(tables: Mapping[str, pa.Table]) -> None:
    """Print the tables that have a title and rows."""
    for name, title in _TITLES.items():
        if len(tables.get(name, ())):
            click.echo(f"\n{title}:")
            _print_table(tables[name])


def _print_table(table: pa.Table) -> None:
    """Print a table of results. Empty columns are omitted."""
    names = [name for name in table.column_names if table[name].null_count < len(table)]
    if "method" in names and len(table["index"].unique()) == 1:  # All conditions ask the same index, or none.
        names = [name for name in names if name != "index"]
    rows = ([_cell(row[name]) for name in names] for row in table.select(names).to_pylist())
    console.print_table([*map(_heading, names)], rows)


def _heading(name: str) -> str:
    return escape_control(re.sub(r"_0_(\d)$", r" at 0.\1", name).replace("_", " "))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else escape_control(str(value))


def _end(warnings: Iterable[str], failed: int = 0) -> None:
    for warning in warnings:
        click.echo(f"note: {escape_control(warning)}", err=True)
    if failed:
        sys.exit(EXIT_FAILED_ITEMS)


@click.command(cls=Command)
@options.settings
@click.option(
    "--description",
    metavar="TEXT",
    help="Describes the corpus and its use. Default: the description in the index or, if there is none, one "
    "generated from its top reports.",
)
@click.option("--personas", type=int, default=5, show_default=True, help="Number of users to imagine.")
@click.option("--tasks", type=int, default=5, show_default=True, help="Number of tasks per user.")
@click.option("--each", type=int, default=5, show_default=True, help="Number of questions per task.")
@click.option("--out", metavar="FILE", required=True, help="The .csv file to write.")
@_run_options
def questions(
    opts: IndexOptions,
    description: str | None,
    personas: int,
    tasks: int,
    each: int,
    out: str,
    as_json: bool,
    **run_options: Any,
) -> None:
    """Generate questions that require an understanding of the whole corpus: a model imagines users, their
    tasks and their questions (Algorithm 1 of the GraphRAG paper). Replies are stored in the folder OUT.work.

    \b
    Examples:
      graphrag-ray evaluate questions --root ./my-index --out questions.csv
      graphrag-ray evaluate questions --root ./my-index --personas 3 --tasks 3 --each 3 --out questions.csv \\
          --description "Minutes of a town council, for people who follow local politics"
    """
    from graphrag_ray.evaluate import written_questions as writing
    from graphrag_ray.store.files import Store

    if not out.lower().endswith(".csv"):
        raise UsageError(f"--out {out!r} must be a .csv file")
    counts = personas, tasks, each
    writing.check_counts(counts)
    index = _open(opts)
    target, name = Store.for_file(out, index.settings.storage.fsspec_options(out))
    with _running(index, f"{out}.work", "questions", as_json, **run_options) as run:
        about = writing.corpus_description_of(run, description)
        run.observer.message(f"Corpus: {about}")
        written, failures = writing.write_questions(run, about, counts)
    target.write(name, writing.as_csv(written))
    if as_json:
        rows = writing.as_table(written).to_pylist()
        console.print_json({"description": about, "questions": rows, "failures": failures, "out": out})
    else:
        click.echo(f"Wrote {len(written)} of {personas * tasks * each} questions to {out}")
    _end(failures, len(failures))


@click.command(cls=Command)
@_question_options
@_judge_options
@options.as_json
def estimate(opts: IndexOptions, questions_url: str, as_json: bool, **judge_options: Any) -> None:
    """Predict calls, tokens and cost of `evaluate compare` with the same options, per condition and for the
    judge.

    Contexts are built for a sample of the questions, but no model is called. The length of replies is
    assumed. Results that already exist in --out are not subtracted.

    \b
    Example:
      graphrag-ray evaluate estimate --root ./my-index --questions questions.csv \\
          --condition C0=global:C0 --condition vector=vector
    """
    conditions = judge_options.pop("conditions")
    index, opened, question_list, warnings = _read_inputs(opts, questions_url, conditions)
    from graphrag_ray.evaluate.cost_estimate import estimate_costs
    from graphrag_ray.llm.pricing import highest_price

    costs = estimate_costs(index, question_list, opened, **judge_options)
    if as_json:
        console.print_json({"planned": [asdict(cost) for cost in costs]})
    else:

        def row(name: str, *sums: float | None) -> list[str]:
            return [escape_control(name), *(f"{n:,.0f}" for n in sums[:-1]), console.format_usd(sums[-1])]

        *counts, usd = zip(*(astuple(cost)[1:] for cost in costs), strict=True)
        total = row("total", *map(sum, counts), None if None in usd else sum(usd))
        columns = ["", "calls", "prompt tokens", "reply tokens", "cost"]
        console.print_table(columns, (row(*astuple(cost)) for cost in costs), total=total)
        if None in usd:
            names = map(index.settings.model_name, STAGE_SETTING_KEYS)
            unpriced = next((n for n in names if highest_price(index.settings.model(n)) is None), "default")
            click.echo(
                f"The price of model {unpriced!r} is unknown. To see the cost, use {price_hint(unpriced)}"
            )
    _end(warnings)


@click.command(cls=Command)
@_question_options
@_judge_options
@click.option("--description", metavar="TEXT", default="", help="Description of the corpus for the page.")
@_report
@_out
@_run_options
def compare(
    opts: IndexOptions,
    questions_url: str,
    conditions: tuple[str, ...],
    criteria: tuple[str, ...],
    replicates: int,
    protocol: str,
    claims: bool,
    description: str,
    report: str | None,
    out: str,
    as_json: bool,
    **run_options: Any,
) -> None:
    """Let a judge compare the answers of several conditions.

    Every condition answers every question. For each pair of answers and each criterion, the judge is called
    several times, half of them with the answers swapped. Win rates, their significance, the reliability of
    the judge and the cost of each condition are written as .parquet tables to the folder --out. Answers and
    verdicts in the folder are reused, so you can add conditions and criteria later.

    The judge is the model of stage `judge`. It should differ from the model that answers:
    --set models.judge.provider=openai --set models.judge.model=NAME
    --set stages.judge.model=judge

    \b
    Examples:
      graphrag-ray evaluate compare --root ./my-index --questions questions.csv \\
          --condition C0=global:C0 --condition C1=global:C1 --condition vector=vector --report page.html
      graphrag-ray evaluate compare --root ./my-index --questions questions.csv --claims \\
          --condition short=hybrid,query.context_tokens=4000 --condition other=answers-of-another-tool.csv
    """
    _check_page(report)
    index, opened, question_list, warnings = _read_inputs(opts, questions_url, conditions)
    from graphrag_ray.evaluate import comparison

    with _running(index, out, "compare", as_json, **run_options) as run:
        result = comparison.compare(
            run, question_list, opened, criteria, replicates, description, claims, protocol
        )
    result.warnings[:0] = warnings
    if as_json:
        console.print_json(result.as_dict())
    else:
        _print_comparison(result)
        click.echo(f"\nTables: {out}" + (f"   Page: {report}" if report else ""))
    if report is not None:
        from graphrag_ray.evaluate.report_page import write_page

        write_page(index, result, report)
    _end(result.warnings, result.failed)


def _print_comparison(result: Comparison) -> None:
    """Print win rates per criterion, then the other tables."""
    from graphrag_ray.evaluate.judging.head_to_head import SIGNIFICANT

    out, tables = console.make_console(), result.tables
    if result.offline:
        out.print(f"{_OFFLINE_JUDGE}\n", style="bold")
    names = tables["conditions"]["name"].to_pylist()
    for criterion in result.criteria:
        out.print(f"{criterion}: win rate of the row over the column, in %")
        cells: dict[tuple[str, str], str] = {}
        for row in tables["win_rates"].to_pylist():
            if row["criterion"] == criterion and (rate := row["win_rate"]) is not None:
                mark = "*" if row["p_holm"] < SIGNIFICANT else " "
                cells[row["first"], row["second"]] = f"{rate:.0f}{mark}"
                cells[row["second"], row["first"]] = f"{100 - rate:.0f}{mark}"
        rows = ([escape_control(name), *(cells.get((name, other), "") for other in names)] for name in names)
        console.print_table(["", *map(_heading, names)], rows)
        out.print()
    out.print(f"* significant: p below {SIGNIFICANT} (Wilcoxon signed-rank test, Holm correction)")
    _print_tables(tables)


@click.command(cls=Command)
@_question_options
@_out
@_run_options
def claims(
    opts: IndexOptions,
    questions_url: str,
    conditions: tuple[str, ...],
    out: str,
    as_json: bool,
    **run_options: Any,
) -> None:
    """Count the distinct factual claims in each condition's answers, and the clusters of similar claims.

    More claims indicate a more comprehensive answer, more clusters a more diverse one (the second metric of
    the GraphRAG paper). If the folder --out contains verdicts of `compare`, their agreement with these counts
    is reported as well.

    \b
    Example:
      graphrag-ray evaluate claims --root ./my-index --questions questions.csv \\
          --condition C0=global:C0 --condition vector=vector --out ./evaluation
    """
    index, opened, question_list, warnings = _read_inputs(opts, questions_url, conditions)
    from graphrag_ray.evaluate.comparison import compare_claims

    with _running(index, out, "claims", as_json, **run_options) as run:
        result = compare_claims(run, question_list, opened)
    if as_json:
        console.print_json({name: table.to_pylist() for name, table in result.tables.items()})
    else:
        _print_tables(result.tables)
    _end([*warnings, *result.warnings], result.failed)


@click.command(cls=Command)
@options.settings
@_questions(
    "A .csv, .json, .jsonl or .parquet file with columns `question`, `answer` (optional: `aliases`), "
    "`documents` (ids, titles or paths), `evidence`, `assertions` and `type`, or of a published data set."
)
@_conditions
@click.option(
    "--retrieval-only",
    is_flag=True,
    help="Score retrieval without generating answers. Also allows the method `keyword`.",
)
@click.option("--judge/--no-judge", default=True, help="Let a model decide whether each answer is correct.")
@click.option(
    "--k", "ks", type=int, multiple=True, help="Value of k for recall@k; repeatable. Default: 1 2 5 8 10 20."
)
@click.option(
    "--metric",
    "metrics",
    type=click.Choice(METRICS),
    multiple=True,
    help="Add a metric that needs several calls of the judge per answer; repeatable.",
)
@_report
@_out
@_run_options
def qa(
    opts: IndexOptions,
    questions_url: str,
    conditions: tuple[str, ...],
    retrieval_only: bool,
    judge: bool,
    ks: tuple[int, ...],
    metrics: tuple[str, ...],
    report: str | None,
    out: str,
    as_json: bool,
    **run_options: Any,
) -> None:
    """Score answers and retrieval against known answers and documents.

    Answers are scored by accuracy, recall, exact match, F1, BLEU-1, ROUGE-L, METEOR (with synonyms if nltk
    has the data of WordNet), a yes/no judge, and the assertions of the questions. Retrieval is scored by
    recall@k, whether all documents are within the first k, precision@k, tokens, substrings, and whether the
    context contains the answer. Scores per question are written to scores.parquet in the folder --out; means
    with deviations, also per type of question, to figures.parquet.

    The method `oracle` answers from the documents of each question, `none` without any.

    \b
    Examples:
      graphrag-ray evaluate qa --root ./my-index --questions gold.jsonl --retrieval-only \\
          --condition hybrid=hybrid --condition keyword=keyword
      graphrag-ray evaluate qa --root ./my-index --questions gold.jsonl --condition local=local
    """
    _check_page(report)
    index = _open(opts)
    from graphrag_ray.evaluate.evaluation_files import gold_questions
    from graphrag_ray.evaluate.judging.answer_metrics import KS
    from graphrag_ray.evaluate.known_answers import score_known_answers

    gold, warnings = gold_questions(questions_url, index.settings.storage.fsspec_options(questions_url))
    opened = _open_indexes(opts, conditions)
    with _running(index, out, "qa", as_json, **run_options) as run:
        result = score_known_answers(run, gold, opened, retrieval_only, judge, ks or KS, metrics)
    warnings += result.warnings
    if as_json:
        tables = {name: table.to_pylist() for name, table in result.tables.items()}
        console.print_json(tables | {"warnings": warnings})
    else:
        _print_scores(result.tables)
        _print_tables(result.tables)
    if report is not None:
        from graphrag_ray.evaluate.report_page import write_scores_page

        result.warnings = warnings
        write_scores_page(index, result, report)
    _end(warnings, result.failed)


def _print_scores(tables: Mapping[str, pa.Table]) -> None:
    """Print the mean of each measure with its interval, then the means per type of question."""
    from graphrag_ray.evaluate.known_answers import figures_by_type

    names = tables["summary"]["condition"].to_pylist()

    def interval(row: Mapping[str, Any] | None) -> str:
        return f"{row['mean']:.3f} ({row['low']:.3f}–{row['high']:.3f})" if row else ""

    for kind, by_measure in figures_by_type(tables["figures"]).items():
        if kind:
            counts = (row["questions"] for of in by_measure.values() for row in of.values())
            click.echo(f"\nType {escape_control(kind)}, {plural(max(counts), 'question')}:")
        else:
            summary = tables["summary"].to_pylist()[0]
            listed = (f"{summary[name]:,} {name.replace('_', ' ')}" for name in _COUNTS)
            click.echo(f"{', '.join(listed)}. Mean and 95% interval:")
        rows = (
            [measure.replace("_", " "), *(interval(of.get(name)) for name in names)]
            for measure, of in by_measure.items()
        )
        console.print_table(["", *map(_heading, names)], rows)


@click.command(cls=Command)
@options.storage
@options.as_json
def communities(opts: IndexOptions, as_json: bool) -> None:
    """Measure each level of each hierarchy: modularity in the graph, Calinski-Harabasz index and mean cosine
    similarity of entity embeddings (higher is better for all three), community sizes, singletons, and the
    share of entities that belong to a community.

    \b
    Example:
      graphrag-ray evaluate communities --root ./my-index
    """
    index = _open(opts)
    from graphrag_ray.evaluate.community_measures import measure_communities

    measures = measure_communities(index)
    if as_json:
        console.print_json({"communities": measures.to_pylist()})
    elif not len(measures):
        click.echo("This index has no entity communities to measure.")
    else:
        _print_table(measures)
