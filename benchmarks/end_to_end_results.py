"""Record end-to-end results and compare two recordings, to check that a refactoring changes nothing.

    python benchmarks/end_to_end_results.py record DIR             # every case, about 2 minutes of CPU
    python benchmarks/end_to_end_results.py record DIR --only demo,update
    python benchmarks/end_to_end_results.py compare BEFORE AFTER   # a diff and exit code 1 if they differ

Records the package that Python imports; set PYTHONPATH to choose a checkout. Each case builds indexes in this
process with the offline engine, and writes one file per result below DIR/CASE: finished tables, answers of
every search method, exports, HTTP replies and command output. Values that legitimately vary are normalised:
times, durations, concurrency, versions, host names, the temporary folder and the names of stored parts.
Vectors are rounded to 3 decimals and hashed. Other floats are rounded to 6 significant digits.

The cases `2wiki` and `podcasts` read the folder GRAPHRAG_RAY_SHARED_DATA, by default ../shared/data next to
the checkout, and are skipped if it does not exist. Recordings contain text of these corpora, so do not commit
them. Without --only, `compare` compares the cases that both recordings contain.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import gzip
import hashlib
import io
import itertools
import json
import os
import re
import runpy
import shutil
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
DEMO = REPOSITORY / "demo" / "corpus"
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "COLUMNS": "110", "NO_COLOR": "1", "TERM": "dumb"}

TABLES = (
    *("documents", "text_units", "entity_instances", "relationship_instances", "entities", "relationships"),
    *("covariates", "communities", "community_reports", "attributed_communities", "attributed_reports"),
    *("tree_clusters", "tree_summaries", "failures"),
)
COMMANDS = ("status", "levels", "failures", "inspect")
EMBEDDED = ("text_unit", "entity", "relationship", "community_report")
GRAPH_METHODS = (
    "global",
    "text",
    "local",
    "vector",
    "hybrid",
    "drift",
    "fgrag",
    "lightrag",
    "ppr",
    "lazy",
    "auto",
)
TREE_METHODS = ("archrag", "trex", "raptor")
NAMES_METHODS = ("text", "vector", "hybrid", "ppr", "lazy", "auto")
VARIANTS = {
    "global_coarse": ("--method", "global", "--level", "C0"),
    "global_dynamic": ("--method", "global", "--dynamic"),
    "global_points": ("--method", "global", "--map-protocol", "points"),
    "global_budget": ("--method", "global", "--level", "auto", "--budget-tokens", "30000"),
    "local_where": ("--method", "local", "--where", "path~*minutes*", "--sources"),
    "lightrag_local": ("--method", "lightrag", "--mode", "local"),
    "lightrag_global": ("--method", "lightrag", "--mode", "global"),
    "ppr_steps": ("--method", "ppr", "--steps", "2"),
    "small_context": ("--method", "local", "--set", "query.context_tokens=1500"),
    "unknown_level": ("--method", "global", "--level", "C9"),
}
TREE_VARIANTS = {
    "raptor_tree": ("--method", "raptor", "--traversal", "tree"),
    "global_attributed": ("--method", "global", "--hierarchy", "attributed"),
    "global_tree": ("--method", "global", "--hierarchy", "tree"),
}
ALL_HIERARCHIES = ("--set", "hierarchies=[leiden,attributed,tree]", "--set", "claims.enabled=true")
DEMO_QUESTIONS = (
    "What happened to the harbour plan and to Hask Marsh?",
    "Who is Rosalind Achterberg?",
    "What did the inquiry find in 2017?",
)

VOLATILE = re.compile(
    r".*_(?:at|until)|latency_.*|(?:model_)?seconds|(?:mean|peak)_in_flight|share_of_limit|host|pid|created|period"
    r"|versions?|code|inputs|waiting|others|parts"  # The last three are sizes of stored files, from `gc`.
)
"""Keys whose values vary between runs, or only with the version of the code."""
MEASURED = ("ttft_s", "tokens_per_s", "slow_share", "slow_factor")
"""Assumptions of `estimate` derived from the times of an earlier run."""
_TEXT = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?"), "<time>"),
    (
        re.compile(r"\b(chatcmpl-)?[0-9a-f]{24}\b"),
        r"\1<id>",
    ),  # Ids of replies; ids of records have 32 digits.
    (re.compile(r"[\d.,]+ CPU seconds"), "<duration> CPU seconds"),
)
_DURATION = re.compile(r"\d+(?:[.,]\d+)? ?(?:ms|s|min|h|seconds?|minutes?)\b")


def text_of(text: str, work: Path) -> str:
    for name in {str(work), str(work.resolve())}:
        text = text.replace(name, "<work>")
    for pattern, instead in _TEXT:
        text = pattern.sub(instead, text)
    return text


def printed(text: str, work: Path) -> str:
    """Normalise human-readable output: durations and the width of their columns vary."""
    text = _DURATION.sub("<duration>", text_of(text, work))
    return re.sub(r"(?m)[ \t]+$", "", re.sub(r" {2,}<duration>|<duration> {2,}", "  <duration>  ", text))


def normal(value: Any, work: Path, within: str = "") -> Any:
    """A JSON value without what legitimately varies. `within` is the key that holds it."""
    if isinstance(value, Mapping):
        # Questions that are embedded at the same time share a call.
        embeds = within == "embed" or value.get("stage") == "answer"
        varies = {"calls", "requests", "unreported"} if embeds else set()
        varies |= {"value"} if value.get("name") in MEASURED else set()
        normalized = {}
        for key in sorted(set(value) - {"compact"}):  # This step depends on how often a run flushed.
            hidden = value[key] is not None and (key in varies or VOLATILE.fullmatch(key))
            normalized[key] = "<varies>" if hidden else normal(value[key], work, key)
        return normalized
    if isinstance(value, str):
        return text_of(value, work)
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list | tuple):
        return [normal(one, work) for one in value]
    if value is None or isinstance(value, int | bool):
        return value
    return text_of(str(value), work)


def _hashed(vectors: Any) -> Iterator[dict[str, Any]]:
    """Rows of a DataFrame, with a hash of each rounded vector in place of the vector."""
    for row in vectors.to_dict("records"):
        rounded = ",".join(f"{round(float(x), 3) + 0.0:.3f}" for x in row["vector"])
        yield row | {"vector": hashlib.sha256(rounded.encode()).hexdigest()[:16]}


class Recording:
    """A case being recorded: its results go below `out`, its indexes below `work`, the working directory."""

    def __init__(self, out: Path, work: Path) -> None:
        self.out, self.work = out, work

    def text(self, name: str, text: str) -> None:
        path = self.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

    def rows(self, name: str, rows: Iterable[Any], in_order: bool = False) -> None:
        """Write one JSON object per line, sorted by id, or as a whole if there is none."""
        normalized = [normal(row, self.work) for row in rows]
        if not in_order:
            normalized.sort(key=lambda row: (str(row.get("id", "")), json.dumps(row, ensure_ascii=False)))
        self.text(f"{name}.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in normalized))

    def run(self, *words: str) -> tuple[int, str, str]:
        """Run a command in this process. Returns exit code, standard output and standard error."""
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="", write_through=True) for _ in range(2))
        argv, sys.argv = sys.argv, ["graphrag-ray", *words]
        code: Any = 0
        try:
            with redirect_stdout(out), redirect_stderr(err):
                runpy.run_module("graphrag_ray", run_name="__main__")
        except SystemExit as e:
            code = e.code
        finally:
            sys.argv = argv
        return int(code or 0), *(one.buffer.getvalue().decode() for one in (out, err))  # type: ignore

    def called(self, *words: str) -> dict[str, Any]:
        """The JSON output of a command, its exit code and its standard error."""
        code, out, err = self.run(*words, "--json")
        result: dict[str, Any] = {"exit_code": code, "stderr": printed(err, self.work).splitlines()}
        try:
            shown = json.loads(out)
        except json.JSONDecodeError:
            return result | {"stdout": printed(out, self.work).splitlines()}
        return result | (shown if isinstance(shown, dict) else {"rows": shown})

    def command(self, name: str, *words: str) -> dict[str, Any]:
        """Record the JSON output of a command, one line per key."""
        result = self.called(*words)
        self.rows(name, ({"id": key, "value": {key: value}} for key, value in result.items()))
        return result

    def shown(self, name: str, *words: str) -> None:
        """Record the output of a command for people."""
        code, out, err = self.run(*words)
        self.text(f"{name}.txt", printed(f"{out}--- standard error\n{err}--- exit code {code}\n", self.work))

    def index(self, root: str, *words: str, name: str = "", expect: int = 0) -> None:
        """Index the folder `input`. Records every finished table and the commands that show the index."""
        from graphrag_ray import open_index

        to = name or root
        result = self.command(
            f"{to}/commands/index", "index", "input", "--root", root, "--in-process", *words
        )
        if result["exit_code"] != expect:
            raise SystemExit(f"index ended with exit code {result['exit_code']}: {result['stderr'][-5:]}")
        opened = open_index(root)
        for table in TABLES:
            self.rows(f"{to}/tables/{table}", opened.table(table).to_pylist())
        for kind in EMBEDDED:
            with suppress(Exception):  # An index of names has no reports.
                self.rows(f"{to}/tables/embeddings_{kind}", _hashed(opened.to_pandas(f"embeddings_{kind}")))
        for command in COMMANDS:
            self.command(f"{to}/commands/{command}", command, "--root", root)
        self.command(f"{to}/commands/snapshots", "status", "--root", root, "--snapshots")

    def looks(self, root: str) -> None:
        """Record `inspect` for records of each kind, and the output of commands for people."""
        from graphrag_ray import open_index

        opened = open_index(root)
        edges = sorted(opened.table("relationships").to_pylist(), key=lambda row: (-row["weight"], row["id"]))
        ends = [edges[0]["source"], edges[0]["target"]]
        kinds = {"entity": ends[:1], "relationship": ends, "search": ["harbour"]}
        numbered = {"community": "communities", "document": "documents", "chunk": "text_units"}
        numbered |= {"theme": "attributed_communities", "summary": "tree_clusters", "claim": "covariates"}
        for kind, table in numbered.items():
            numbers = opened.table(table)["human_readable_id"].to_pylist()
            kinds[kind] = [str(min(numbers, default=1))]
        for kind, words in kinds.items():
            self.command(f"{root}/inspect/{kind}", "inspect", kind, *words, "--root", root, "--limit", "3")
            self.shown(f"{root}/inspect/{kind}", "inspect", kind, *words, "--root", root, "--limit", "3")
        for command in COMMANDS:
            self.shown(f"{root}/commands/{command}", command, "--root", root)

    def answers(self, root: str, questions: Iterable[str], asked: Mapping[str, tuple[str, ...]]) -> None:
        for name, words in asked.items():
            rows = (self.called("query", one, "--root", root, *words) | {"id": one} for one in questions)
            self.rows(f"{root}/answers/{name}", rows)

    def exports(self, root: str, *words: str) -> None:
        for form in ("graphrag", "graphml", "csv"):
            to = "-".join(["export", root, form, *words[1:]])
            name = f"{root}/exports/{to}"
            result = self.called("export", "--root", root, "--format", form, "--out", to, *words)
            files = {re.sub(r"\.lance/.*", ".lance", str(one)) for one in result.pop("files", ())}
            self.rows(f"{name}/command", ({"id": key, "value": value} for key, value in result.items()))
            self.text(f"{name}/files.txt", "".join(f"{one}\n" for one in sorted(files)))
            for path in sorted(Path(to).rglob("*")):
                if path.suffix == ".parquet":
                    self.rows(f"{name}/{path.relative_to(to)}", _parquet(path), in_order=True)
                elif path.suffix == ".lance" and path.is_dir():
                    self.rows(f"{name}/{path.relative_to(to)}", _lance(path))
                elif path.is_file() and ".lance" not in str(path) and path.name != "export.json":
                    text = text_of(path.read_text("utf-8"), self.work)
                    self.text(f"{name}/{path.relative_to(to)}", text)

    def service(self, root: str, questions: tuple[str, ...]) -> None:
        """Record the HTTP service in this process: /query, its stream, OpenAI's protocol, and rejections."""
        local = {"question": questions[0], "method": "local"}
        chat = {
            "model": "graphrag-ray/hybrid",
            "messages": _said(questions[0], "It flooded.", "Who opposed it?"),
        }
        asked: dict[str, Any] = dict.fromkeys(("/index", "/v1/models", "/openapi.json"))
        for n, question in enumerate(questions):
            for method in ("global", "local", "hybrid"):
                asked[f"/query {method} {n}"] = {"question": question, "method": method}
            asked[f"/v1/chat/completions {n}"] = {"model": "graphrag-ray/local", "messages": _said(question)}
        asked["/v1/chat/completions follow-up"] = chat
        asked["/v1/chat/completions stream"] = chat | {"stream": True}
        asked["/v1/chat/completions unknown model"] = chat | {"model": "other"}
        asked["/query stream"] = local | {"stream": True}
        asked["/query contexts"] = local | {"contexts": True}
        asked["/query unknown method"] = local | {"method": "nothing"}
        asked["/query no question"] = {"method": "local"}
        with _served(root) as url:
            for name, body in asked.items():
                replied = _replied(url + name.partition(" ")[0], body)
                self.rows(f"{root}/service/{re.sub('[/ ]', '_', name[1:])}", replied, in_order=True)


def _said(*turns: str) -> list[dict[str, str]]:
    """A conversation in OpenAI's protocol."""
    return [{"role": ("user", "assistant")[n % 2], "content": turn} for n, turn in enumerate(turns)]


def _replied(url: str, body: Any) -> Iterator[dict[str, Any]]:
    """One row for the status, then one for each key of a reply or line of a stream."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        reply = urllib.request.urlopen(request, timeout=120)
    except urllib.error.HTTPError as e:
        reply = e
    with reply:
        text = reply.read().decode().replace(url.split(":")[2].partition("/")[0], "<port>")
        yield {"status": reply.status}
    if text.startswith("{"):
        yield from ({key: value} for key, value in json.loads(text).items())
        return
    for line in text.splitlines():  # Server-sent events.
        kind, _, value = line.partition(": ")
        yield {kind: json.loads(value) if value.startswith(("{", '"')) else value}


def _parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    return pq.read_table(path).to_pylist()


def _lance(path: Path) -> Iterator[dict[str, Any]]:
    import lancedb

    return _hashed(lancedb.connect(str(path.parent)).open_table(path.stem).to_arrow().to_pandas())


@contextmanager
def _served(root: str) -> Iterator[str]:
    """Context manager for the service in this process. Yields its URL."""
    import uvicorn

    from graphrag_ray.service.app import create_app
    from graphrag_ray.service.service_options import ServiceOptions

    app = create_app(ServiceOptions(root=root), None)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="on"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while thread.is_alive() and not server.started:
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def demo_files(n: int, to: str = "input") -> None:
    Path(to).mkdir(exist_ok=True)
    for path in sorted(DEMO.iterdir())[:n]:
        shutil.copy2(path, to)


def asked_by(methods: Iterable[str]) -> dict[str, tuple[str, ...]]:
    return {method: ("--method", method) for method in methods}


def tiny(record: Recording) -> None:
    """A small case for the unit test of this program."""
    demo_files(2)
    record.index("index")
    record.answers("index", DEMO_QUESTIONS[:1], asked_by(["local"]))


def demo(record: Recording) -> None:
    demo_files(100)
    record.command("estimate", "estimate", "input")
    record.shown("estimate", "estimate", "input")
    record.index("index")
    record.looks("index")
    record.answers("index", DEMO_QUESTIONS, asked_by(GRAPH_METHODS))
    record.answers("index", DEMO_QUESTIONS[:1], VARIANTS)
    record.shown("index/answers/shown", "query", DEMO_QUESTIONS[0], "--root", "index", "--sources")
    record.exports("index")
    record.service("index", DEMO_QUESTIONS[:2])
    rows = "".join(f'{n},"{question}"\n' for n, question in enumerate(DEMO_QUESTIONS))
    Path("questions.csv").write_text(f"id,question\n{rows}")
    compared = ("--questions", "questions.csv", "--condition", "C0=global:C0", "--condition", "vector=vector")
    evaluated = ("evaluate", "compare", "--root", "index", "--out", "evaluation")
    record.command("index/evaluate", *evaluated, *compared)
    record.command("index/commands/estimate", "estimate", "input", "--root", "index")
    record.command("index/commands/index_again", "index", "input", "--root", "index", "--in-process")


def hierarchies(record: Recording) -> None:
    demo_files(16)
    record.command("estimate", "estimate", "input", *ALL_HIERARCHIES)
    record.index("index", *ALL_HIERARCHIES)
    record.looks("index")
    record.answers("index", DEMO_QUESTIONS, asked_by((*TREE_METHODS, "local", "drift")))
    record.answers("index", DEMO_QUESTIONS[:1], TREE_VARIANTS)
    for hierarchy in ("leiden", "attributed", "tree"):
        record.exports("index", "--hierarchy", hierarchy)
        record.command(f"index/levels_{hierarchy}", "levels", "--root", "index", "--hierarchy", hierarchy)


def settings(record: Recording) -> None:
    """Settings that use other code paths: small chunks and contexts, strengths as weights, other
    libraries.
    """
    demo_files(12)
    changed = [
        "chunking.size=150",
        "chunking.overlap=20",
        "graph.edge_weight=strength",
        "reports.context_tokens=600",
        "communities.max_size=4",
        "communities.library=leidenalg",
        "hierarchies=[attributed,leiden,tree]",
        "attributed.max_size=4",
        "attributed.clustering=spectral",
        "attributed.similarity_links=codicil",
        "tree.dimensionality_reduction=pca",
    ]
    record.index("index", *(word for one in changed for word in ("--set", one)))
    record.answers("index", DEMO_QUESTIONS[:2], asked_by(("global", "local", "archrag", "raptor")))
    scan = ("--set", "hierarchies=[attributed]", "--set", "attributed.clustering=scan")
    record.index("scan", *scan)


def names(record: Recording) -> None:
    demo_files(20)
    record.command("estimate", "estimate", "input", "--build", "names")
    record.index("index", "--build", "names")
    record.answers("index", DEMO_QUESTIONS, asked_by(NAMES_METHODS))
    record.answers("index", DEMO_QUESTIONS[:1], {"global": ("--method", "global")})
    record.index("index", name="all")


def update(record: Recording) -> None:
    """Two added documents, one changed, one deleted, and an unreadable file, with every kind of record."""
    files = sorted(DEMO.iterdir())
    demo_files(10)
    record.index("index", *ALL_HIERARCHIES, name="0_first")
    for path in files[10:12]:
        shutil.copy2(path, "input")
    record.index("index", name="1_added")
    changed = Path("input", files[1].name)
    text = changed.read_text("utf-8").replace("marsh", "meadow")
    changed.write_text(f"{text}\nMara Venn left Varnmouth.\n")
    record.index("index", name="2_changed")
    Path("input", files[3].name).unlink()
    record.command("refused", "index", "input", "--root", "index", "--in-process")
    record.index("index", "--allow-deletes", name="3_deleted")
    Path("input", "broken.parquet").write_bytes(b"PAR1 this is no table")
    record.index("index", expect=3, name="4_broken")
    record.shown("4_broken/commands/failures", "failures", "--root", "index")
    record.index("index", "--reset-communities", expect=3, name="5_reset")
    record.answers("index", DEMO_QUESTIONS[:1], asked_by((*GRAPH_METHODS, *TREE_METHODS)))
    record.command("gc", "gc", "--root", "index", "--keep", "2")


def command_line(record: Recording) -> None:
    """The help of every command, and messages about usage errors."""
    record.shown("help/graphrag-ray", "--help")
    others = ("init", "index", "query", "chat", "export", "evaluate", "serve", "gc", "estimate")
    for command in (*COMMANDS, *others):
        record.shown(f"help/{command}", command, "--help")
    for command in ("questions", "estimate", "compare", "claims", "qa", "communities"):
        record.shown(f"help/evaluate_{command}", "evaluate", command, "--help")
    record.shown("wrong/no_index", "query", "Who?", "--root", "nowhere")
    record.shown("wrong/no_input", "index", "nowhere", "--root", "index", "--in-process")
    record.shown("wrong/setting", "index", "nowhere", "--root", "index", "--set", "chunking.sise=3")
    record.shown("wrong/method", "query", "Who?", "--root", "nowhere", "--method", "glbal")


def shared(corpus: str) -> Path | None:
    """The folder of a corpus outside the repository, or None, with a message, if it does not exist."""
    folder = Path(os.environ.get("GRAPHRAG_RAY_SHARED_DATA", REPOSITORY.parent / "shared" / "data")) / corpus
    if folder.is_dir():
        return folder
    print(f"{corpus}: skipped, there is no {folder} (GRAPHRAG_RAY_SHARED_DATA)", file=sys.stderr)
    return None


def two_wiki(record: Recording) -> None:
    if (data := shared("2wiki")) is None:
        return
    Path("input").mkdir()
    with gzip.open(data / "passages.jsonl.gz", "rt", encoding="utf-8") as passages:
        Path("input/passages.jsonl").write_text("".join(itertools.islice(passages, 400)), "utf-8")
    with (data / "questions.jsonl").open(encoding="utf-8") as lines:
        first = [json.loads(line) for line in itertools.islice(lines, 10)]
    record.index("index", "--set", "input.id_column=id", "--set", "input.title_column=title")
    questions = [row["question"] for row in first]
    record.answers("index", questions[:2], asked_by(GRAPH_METHODS))
    batch = [{"id": str(i), "question": question} for i, question in enumerate(questions)]
    Path("questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in batch), "utf-8")
    for method in ("hybrid", "ppr", "local"):
        out = f"{method}.parquet"
        words = ("--batch", "questions.jsonl", "--out", out, "--method", method)
        record.command(f"index/batch/{method}_command", "query", "--root", "index", *words)
        record.rows(f"index/batch/{method}", _parquet(Path(out)))


def podcasts(record: Recording) -> None:
    if (data := shared("kevin-scott")) is None:
        return
    with zipfile.ZipFile(data / "transcripts.zip") as archive:
        for name in sorted(name for name in archive.namelist() if name.endswith(".txt"))[:40]:
            archive.extract(name)
    with (data / "questions.csv").open(encoding="utf-8-sig", newline="") as rows:
        questions = [row["question_text"] for row in itertools.islice(csv.DictReader(rows), 2)]
    options = ("--set", "chunking.size=document", "--set", r"input.strip_pattern=[^\n]*?\.txt\s")
    record.index("index", *options)
    record.answers("index", questions, asked_by(GRAPH_METHODS))
    record.exports("index")


CASES: Mapping[str, Callable[[Recording], None]] = {
    "demo": demo,
    "hierarchies": hierarchies,
    "settings": settings,
    "names": names,
    "update": update,
    "commands": command_line,
    "2wiki": two_wiki,
    "podcasts": podcasts,
    "tiny": tiny,
}
DEFAULT = tuple(name for name in CASES if name != "tiny")


def record_case(name: str, directory: Path) -> None:
    """Replace DIR/CASE by the results of this version of the code."""
    out = (directory / name).absolute()
    shutil.rmtree(out, ignore_errors=True)
    started = time.process_time()
    # The name of the folder has a fixed length, because it is shown in wrapped lines.
    with tempfile.TemporaryDirectory(prefix="end-to-end-") as temporary:
        os.environ.update(ENVIRONMENT, GRAPHRAG_RAY_SETTINGS=f"{temporary}/user.yaml")
        os.environ.setdefault("GRAPHRAG_RAY_CACHE", f"{temporary}/cache")
        work = Path(temporary, "work")
        work.mkdir()
        with chdir(work):
            CASES[name](Recording(out, work))
    files = sum(path.is_file() for path in out.rglob("*"))
    print(f"{name}: {files} files, {time.process_time() - started:.0f} s of CPU", file=sys.stderr, flush=True)


def compare(before: Path, after: Path, only: Iterable[str], max_examples: int = 3) -> list[str]:
    """Return the differences between two recordings as lines to print; empty if there are none."""
    report: list[str] = []
    cases = list(only) or [name for name in CASES if (before / name).is_dir() and (after / name).is_dir()]
    if not cases:
        return [f"nothing to compare: {before} and {after} have no case in common"]
    for case in cases:
        files = [
            {str(p.relative_to(root)): p for p in (root / case).rglob("*") if p.is_file()}
            for root in (before, after)
        ]
        if not any(files):
            report.append(f"{case}: not recorded")
        for name in sorted(files[0].keys() | files[1].keys()):
            if name not in files[0] or name not in files[1]:
                report.append(f"{name}: only {'before' if name in files[0] else 'after'}")
                continue
            old, new = (of[name].read_text("utf-8") for of in files)
            if old != new:
                report += [f"{name}:", *(f"    {line}" for line in differences(name, old, new, max_examples))]
    return report


def differences(name: str, old: str, new: str, most: int) -> list[str]:
    """Count the differences in a file, and show the first examples."""
    lines = old.split("\n"), new.split("\n")
    if not name.endswith(".jsonl"):
        changed = list(difflib.unified_diff(*lines, lineterm="", n=0))[2:]
        rest = [f"… {len(changed) - 4 * most} more lines of diff"] if len(changed) > 4 * most else []
        return [line[:300] for line in changed[: 4 * most]] + rest
    keyed = [_by_key(side) for side in lines]
    if keyed[0] == keyed[1]:
        return ["the same rows in another order"]
    out = []
    for sign, one, other in (("-", *keyed), ("+", *reversed(keyed))):
        alone = [key for key in one if key not in other]
        if alone:
            out.append(f"{len(alone)} of {len(one)} rows only {'before' if sign == '-' else 'after'}")
            out += [f"{sign} {json.dumps(one[key], ensure_ascii=False)[:300]}" for key in alone[:most]]
    pairs = [(key, row, keyed[1][key]) for key, row in keyed[0].items() if keyed[1].get(key, row) != row]
    columns = Counter(c for _, a, b in pairs for c in a.keys() | b.keys() if a.get(c, ...) != b.get(c, ...))
    if pairs:
        counts = ", ".join(f"{column} ({n})" for column, n in sorted(columns.items()))
        out.append(f"{len(pairs)} of {len(keyed[0])} rows changed, in {counts}")
    for key, a, b in pairs[:most]:
        for column in sorted(c for c in columns if a.get(c, ...) != b.get(c, ...)):
            out.append(f"{key[:60]}: {column}")
            values = (json.dumps(row.get(column), ensure_ascii=False) for row in (a, b))
            out += [f"{sign} {value}" for sign, value in zip("-+", _around(*values), strict=True)]
    return out


def _by_key(lines: list[str]) -> dict[str, dict[str, Any]]:
    """Rows by id if ids are unique, otherwise by position."""
    rows = [json.loads(line) for line in lines if line]
    ids = [row.get("id") for row in rows]
    if None in ids or len(set(map(str, ids))) < len(ids):
        return {f"row {n}": row for n, row in enumerate(rows)}
    return {str(row["id"]): row for row in rows}


def _around(old: str, new: str) -> tuple[str, str]:
    """Both values near the first character that differs."""
    pairs = enumerate(zip(old, new, strict=False))
    place = next((n for n, (a, b) in pairs if a != b), min(len(old), len(new)))
    start = max(0, place - 60)
    cut = "…" if start else ""
    return cut + old[start : place + 140], cut + new[start : place + 140]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording, comparing = commands.add_parser("record"), commands.add_parser("compare")
    recording.add_argument("directory", type=Path)
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    for one in (recording, comparing):
        one.add_argument("--only", type=lambda text: text.split(","), default=(), help=", ".join(CASES))
    options = parser.parse_args()
    if unknown := sorted(set(options.only) - set(CASES)):
        parser.error(f"unknown cases {', '.join(unknown)}; choose from {', '.join(CASES)}")
    if options.command == "compare":
        report = compare(options.before, options.after, options.only)
        print("\n".join(report) or "no difference")
        sys.exit(bool(report))
    import graphrag_ray

    print(f"recording {Path(graphrag_ray.__file__).parent}", file=sys.stderr)
    for name in options.only or DEFAULT:
        record_case(name, options.directory)


if __name__ == "__main__":
    main()
