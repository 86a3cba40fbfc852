"""Estimate the resources for corpora of 1M, 100M and 10B tokens: time, cost, nodes, memory and storage.

    python benchmarks/sizing.py            # prints the table in cluster/README.md

None of these corpora was indexed. Calls and tokens are predicted by the forecast behind `graphrag-ray
estimate`, with the growth of the graph that we measured between 1M and 10M tokens. CPU and memory are
extrapolated from benchmarks/RESULTS.md. Each constant below states its origin. The prompts are the real ones.
The lengths of contexts come from a sample graph of the demo corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from graphrag_ray.base.index_settings import Settings
from graphrag_ray.base.prompts import load_prompts
from graphrag_ray.base.settings_file import parse_settings
from graphrag_ray.corpus.document import Document
from graphrag_ray.graph.extraction_dialogue import extract_spec
from graphrag_ray.indexing.estimate import extract_offline
from graphrag_ray.indexing.forecast.corpus_counts import ChunkCounter, CorpusCounts
from graphrag_ray.indexing.forecast.forecast import Evidence, Forecast, forecast
from graphrag_ray.indexing.index import load_names
from graphrag_ray.indexing.stages.input_listing import list_input
from graphrag_ray.indexing.stages.read_stage import read_file

DEMO = Path(__file__).parents[1] / "demo" / "corpus"

PRICE = {"input_usd_per_mtok": 0.15, "output_usd_per_mtok": 0.60}
"""Assumed price of a small hosted model, in US dollars per million tokens."""
CHUNKS_PER_MTOK = 2_086
"""Measured: 20,857 chunks in 5,153 documents with 10.0M tokens, with 600 tokens per chunk and an overlap of
100."""
RECORDS_IN_1_MTOK = {"entities": 8_564.0, "relationships": 20_691.0}
"""Records that GPT-4 extracted from 1.01M tokens (section 4.1 of the paper). Other models find up to three
times as many, or as few as a third."""
GROWTH_EXPONENTS = {"entities": 0.651, "relationships": 0.744}
"""Exponents of the power law by which records grow with tokens. Measured between 1M and 10M tokens (6,416 to
28,720 entities, 13,789 to 76,492 relationships). The exponents fall slowly with size, so the numbers for much
larger corpora are too high."""
COMMUNITIES_PER_ENTITY = 0.205
"""Measured: 1,353 communities for 6,610 entities."""
CALL_CPU_S = 0.0056
"""Measured: CPU seconds per call, over all processes."""
LIMITER_CPU_S = 0.00068
"""Measured: CPU seconds per call in the limiter, which all workers share, at 385 calls per second from 8
workers on two cores with other load. The cost per call falls at higher rates: 0.00036 at 1,585, 0.00008 at
3,771."""
TABLES_CPU_S_PER_MTOK = 15.0
"""Measured at 10M tokens: read, merge, communities, embed (offline), search and finish."""
DRIVER_MB = 500
"""Measured at 10M tokens: memory of the driver, except what grows with the graph and the chunks."""
GRAPH_BYTES_PER_EDGE = 302
"""Measured: peak memory of 2,970 MB when running Leiden on 9.83M edges."""
KEY_BYTES_PER_CHUNK = 70 + 12
"""Memory for a chunk's key in the current sweep, and for its entry in the journal index."""
REPORT_BYTES = 5_000
"""Size of a finished report in a temporary file on the driver's machine."""
TABLE_MB_PER_MTOK = 57
"""Measured at 10M tokens with the offline engine. Larger corpora need less, because the graph grows more
slowly than the text."""
START_S = 25.0
"""Measured: duration of a run apart from calls and tables."""


@dataclass(frozen=True)
class Case:
    """A corpus, and the limits and hardware for it.

    `tokens_per_minute` and `requests_per_minute` are totals over all endpoints. `nodes` is the number of
    workers with `vcpus` each, or 0 to run on a single machine.
    """

    tokens: float
    tokens_per_minute: float
    requests_per_minute: float
    nodes: int
    vcpus: int

    @property
    def cores(self) -> int:
        return max(1, self.nodes) * self.vcpus


CASES = (
    Case(1e6, 2e6, 1e4, 0, 2),
    Case(1e8, 2e7, 2e4, 2, 4),
    Case(1e10, 1e8, 1e5, 8, 8),
)


@dataclass(frozen=True)
class SizedCase:
    case: Case
    forecast: Forecast

    def total(self, count: str) -> float:
        """Sum calls, prompt_tokens or completion_tokens over all stages except embed, which runs offline."""
        return float(sum(getattr(s.volume, count) for s in self.forecast.stages if s.volume.stage != "embed"))

    @property
    def calls(self) -> float:
        return self.total("calls")

    @property
    def model_calls_s(self) -> float:
        return float(self.forecast.totals["seconds"]) - self.forecast.overhead_s

    @property
    def tables_cpu_s(self) -> float:
        return TABLES_CPU_S_PER_MTOK * self.case.tokens / 1e6

    @property
    def calls_cpu_s(self) -> float:
        return CALL_CPU_S * self.calls

    @property
    def in_flight(self) -> float:
        """Little's law: calls per second times seconds per call, at the assumed latency."""
        latency = {a.name: a.value for a in self.forecast.assumptions}
        reply = self.total("completion_tokens") / self.calls
        return self.calls / self.model_calls_s * (latency["ttft_s"] + reply / latency["tokens_per_s"])

    @property
    def graph_bytes(self) -> float:
        return GRAPH_BYTES_PER_EDGE * self.forecast.graph["relationships"]

    @property
    def driver_bytes(self) -> float:
        return DRIVER_MB * 1e6 + self.graph_bytes + KEY_BYTES_PER_CHUNK * self.forecast.corpus.chunks


ROWS: Mapping[str, Callable[[SizedCase], str]] = {
    "tokens per minute, requests per minute (chosen)": lambda s: (
        f"{short(s.case.tokens_per_minute)}, {short(s.case.requests_per_minute)}"
    ),
    "worker nodes (chosen)": lambda s: (
        f"{s.case.nodes} with {s.case.vcpus} vCPUs each"
        if s.case.nodes
        else f"none: one machine, {s.case.vcpus} cores"
    ),
    "chunks of 600 tokens": lambda s: short(s.forecast.corpus.chunks),
    "entities": lambda s: short(s.forecast.graph["entities"]),
    "relationships": lambda s: short(s.forecast.graph["relationships"]),
    "reports": lambda s: short(s.forecast.graph["communities"]),
    "calls": lambda s: short(s.calls),
    "prompt tokens": lambda s: short(s.total("prompt_tokens")),
    "completion tokens": lambda s: short(s.total("completion_tokens")),
    "US dollars, at 0.15 and 0.60 per million tokens": lambda s: short(s.forecast.totals["cost_usd"]),
    "hours of model calls at these limits": lambda s: short(s.model_calls_s / 3600),
    "total hours": lambda s: short(s.forecast.totals["seconds"] / 3600),
    "mean calls in flight": lambda s: short(s.in_flight),
    "CPU hours: calls": lambda s: short(s.calls_cpu_s / 3600),
    "CPU hours: tables": lambda s: short(s.tables_cpu_s / 3600),
    "share of the workers' CPU used by calls": lambda s: (
        f"{s.calls_cpu_s / s.model_calls_s / s.case.cores:.0%}"
    ),
    "mean share of one core used by the limiter": lambda s: (
        f"{LIMITER_CPU_S * s.calls / s.model_calls_s:.0%}"
    ),
    "driver, GB: graph": lambda s: short(s.graph_bytes / 1e9),
    "driver, GB: total": lambda s: short(s.driver_bytes / 1e9),
    "memory of the head node, GB: twice the driver, at least 8": lambda s: short(
        max(8.0, 2 * s.driver_bytes / 1e9)
    ),
    "disk of the head node for finished reports, GB": lambda s: short(
        REPORT_BYTES * s.forecast.graph["communities"] / 1e9
    ),
    "tables in storage, at most, GB": lambda s: short(TABLE_MB_PER_MTOK * s.case.tokens / 1e9),
}


def main() -> None:
    print(sizing_table(size_cases()))


def size_cases(cases: Sequence[Case] = CASES) -> list[SizedCase]:
    counter, evidence, prompt_overhead = sample()
    embed_ratio = counter.corpus.embed_tokens / max(1.0, counter.corpus.chunk_tokens)
    return [SizedCase(case, forecast_of(case, evidence, prompt_overhead, embed_ratio)) for case in cases]


def sample() -> tuple[ChunkCounter, Evidence, float]:
    """Extract the demo corpus offline. Also return the number of tokens in a prompt besides its chunk."""
    settings = settings_of(CASES[0])
    spec = extract_spec(load_prompts(), settings, load_names(settings).key)
    counter = ChunkCounter(spec, settings, 1_000, None)
    for file in list_input(str(DEMO), "", {}):
        for document in read_file(file, settings, {}):
            assert isinstance(document, Document), document
            counter.add(document)
    evidence = Evidence(extract_offline(counter.sampled, spec))
    c = counter.corpus
    return counter, evidence, (c.prompt_tokens - c.passage_tokens) / c.sent_chunks


def settings_of(case: Case) -> Settings:
    endpoint = {
        "tokens_per_minute": case.tokens_per_minute,
        "requests_per_minute": case.requests_per_minute,
    }
    model = {"provider": "openai", "model": "m", "endpoints": [endpoint], "price": PRICE}
    return parse_settings({"models": {"default": model}})


def forecast_of(case: Case, evidence: Evidence, prompt_overhead: float, embed_ratio: float) -> Forecast:
    settings = settings_of(case)
    mtok = case.tokens / 1e6
    chunks = CHUNKS_PER_MTOK * mtok
    chunk_tokens = case.tokens + settings.chunking.overlap * chunks
    corpus = CorpusCounts(
        chunks=chunks,
        chunk_tokens=chunk_tokens,
        prompt_tokens=chunks * prompt_overhead + chunk_tokens,
        passage_tokens=chunk_tokens,
        embed_tokens=chunk_tokens * embed_ratio,
    )
    known = {name: n * mtok ** GROWTH_EXPONENTS[name] for name, n in RECORDS_IN_1_MTOK.items()}
    known["communities_per_entity"] = COMMUNITIES_PER_ENTITY
    known["own_s"] = START_S + TABLES_CPU_S_PER_MTOK * mtok / case.cores
    return forecast(settings, load_prompts(), corpus, evidence, known)


def sizing_table(sized: Sequence[SizedCase]) -> str:
    """Return a Markdown table with a column per case."""
    head = ["tokens in the corpus", *(short(s.case.tokens) for s in sized)]
    lines = [head, ["---"] * len(head), *([name, *(show(s) for s in sized)] for name, show in ROWS.items())]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def short(number: float) -> str:
    """Round to two significant digits: 1,234 becomes 1,200, and 8,564,000 becomes 8.6M."""
    for unit, name in ((1e9, "B"), (1e6, "M")):
        if number >= unit:
            return f"{float(f'{number / unit:.2g}'):,g}{name}"
    return f"{float(f'{number:.2g}'):,g}"


if __name__ == "__main__":
    main()
