"""The results for people: tables in Markdown, plots in SVG, and the same in JSON for programs."""
# ruff: noqa: RUF001 - the sign for times is meant

import json
from collections.abc import Sequence
from pathlib import Path

from bench import svg
from bench.fleet import SIZES
from bench.measures import ALL
from bench.results import Results
from bench.targets import US, Verdict

# One table after another: title, and its columns as heading, measure, figure, form.
Column = tuple[str, str, str, str]
TABLES: list[tuple[str, list[Column]]] = [
    (
        "Throughput, jobs/s (× = Holdfast's rate by this one, the median over the rounds that both have)",
        [
            ("enqueue one", "enqueue_one", "jobs_per_s", "rate"),
            ("enqueue bulk", "enqueue_bulk", "jobs_per_s", "rate"),
            ("drain 20k, 1 process", "drain_20k_1p", "jobs_per_s", "rate"),
            ("2 processes", "drain_20k_2p", "jobs_per_s", "rate"),
            ("drain 100k, 1 process", "drain_100k_1p", "jobs_per_s", "rate"),
            ("2 processes", "drain_100k_2p", "jobs_per_s", "rate"),
            ("1 ms async job", "realistic", "jobs_per_s", "rate"),
            ("16 producers", "producers", "jobs_per_s", "rate"),
        ],
    ),
    (
        "Latency, ms",
        [
            ("pickup p50", "pickup", "p50", "ms"),
            ("p95", "pickup", "p95", "ms"),
            ("p99", "pickup", "p99", "ms"),
            ("delayed, late p50", "delayed", "p50", "ms"),
            ("p95", "delayed", "p95", "ms"),
            ("p99", "delayed", "p99", "ms"),
            ("urgent p99, 100k due", "flood", "p99", "ms"),
            ("by idle", "flood", "ratio", "ratio"),
        ],
    ),
    *(
        (
            f"Idle workers: {size}",
            [
                ("connections", "idle", f"connections_{size}", "plain"),
                ("of one worker, most", "idle", f"most_{size}", "plain"),
                ("mean", "idle", f"mean_{size}", "ratio"),
                ("transactions/s of all", "idle", f"transactions_{size}", "ratio"),
                ("server, % of a core", "idle", f"cpu_{size}", "ratio"),
                ("pickup p50, ms", "herd", f"p50_{size}", "ms"),
                ("p99", "herd", f"p99_{size}", "ms"),
                ("empty claims per job", "herd", f"empty_{size}", "share"),
                ("of them idle polls", "herd", f"idle_polls_{size}", "share"),
            ],
        )
        for size in SIZES
    ),
    (
        "A stream of single jobs from one producer, beside one idle worker",
        [
            ("alone, jobs/s", "stream", "alone", "plain"),
            ("beside a worker", "stream", "jobs_per_s", "plain"),
            ("share", "stream", "ratio", "share"),
            ("pickup p50, ms", "stream", "p50", "ms"),
            ("p99", "stream", "p99", "ms"),
        ],
    ),
    (
        "Under a burden, jobs/s and the share of the rate without it",
        [
            ("100k, analyzed", "backlog", "without", "rate"),
            ("with 1M waiting", "backlog", "jobs_per_s", "rate"),
            ("share", "backlog", "ratio", "share"),
            ("with 1M unknown", "backlog_unknown", "jobs_per_s", "rate"),
            ("share", "backlog_unknown", "ratio", "share"),
            ("snapshot held, last 3 of 10", "snapshot", "last_held", "plain"),
            ("share", "snapshot", "held_ratio", "share"),
            ("enqueuer open, last 3", "snapshot", "last_open", "plain"),
            ("share", "snapshot", "open_ratio", "share"),
        ],
    ),
    (
        "Costs",
        [
            ("WAL per job, enqueue", "footprint", "wal_enqueue", "bytes"),
            ("run", "footprint", "wal_run", "bytes"),
            ("table growth per job", "footprint", "growth", "bytes"),
            ("RSS, MB", "memory", "rss_mb", "plain"),
            ("after 1M more", "memory", "rss_mb_after", "plain"),
            ("import, s", "import", "seconds", "seconds"),
        ],
    ),
    (
        "Holdfast alone: many tasks, processes, and notification",
        [
            ("one task", "spread", "one_task", "plain"),
            ("30 tasks", "spread", "thirty_ratio", "share"),
            ("3 × 10, nine tenths in one", "spread", "skewed_ratio", "share"),
            ("200 µs of computing, 2 processes by 1", "cores", "compute_ratio", "share"),
            ("no-op, 2 processes by 1", "cores", "noop_ratio", "share"),
            ("16 producers, no notification", "producers", "without_notify", "plain"),
            ("with by without", "producers", "ratio", "share"),
        ],
    ),
    (
        "Holdfast alone: progress and results",
        [
            ("ctx.progress(n), µs", "spoken", "progress_us", "share"),
            ("with stage and message", "spoken", "in_full_us", "share"),
            ("ctx.track, µs an item", "spoken", "track_us", "share"),
            ("enqueue to result p50, ms", "awaited", "p50", "ms"),
            ("p99", "awaited", "p99", "ms"),
            ("1,000 enqueued and gathered, s", "awaited", "thousand_s", "share"),
        ],
    ),
    (
        "Holdfast alone: a look at a queue in which five million wait, ms",
        [
            ("hf.stats.count()", "looks", "stats_ms", "ms"),
            ("hf.stats.recent()", "looks", "statistics_ms", "ms"),
            ("hf.health.check()", "looks", "health_ms", "ms"),
            ("hf.jobs.list()", "looks", "jobs_ms", "ms"),
            ("job.refresh()", "looks", "job_ms", "ms"),
        ],
    ),
]


def markdown(results: Results, verdicts: Sequence[Verdict], rounds: int) -> str:
    """The whole report."""
    lines = [
        "# Holdfast and its peers",
        "",
        f"Medians of {rounds} or more alternating rounds (the notes name what has one); see bench/README.md.",
        "",
        *(f"- {name}: {value}" for name, value in results.facts.items()),
        *(f"- **skipped: {name}**: {reason}" for name, reason in results.skipped.items()),
    ]
    for title, columns in TABLES:
        lines += _table(results, title, [column for column in columns if column[1] in results.cells])
    if verdicts:
        lines += ["", "## Targets", "", *targets(verdicts)]
    lines += ["", "## Settings", "", "| peer | version | settings | documented in |", "|---|---|---|---|"]
    for name, about in results.peers.items():
        lines.append(f"| {name} | {about['version']} | {about['settings']} | {about['source']} |")
    lines += ["", "## Notes", "", *_notes(results)]
    return "\n".join(lines) + "\n"


def targets(verdicts: Sequence[Verdict]) -> list[str]:
    rows = [f"| {verdict.word} | {verdict.found} | {verdict.target} |" for verdict in verdicts]
    return ["| | found | target |", "|---|---|---|", *rows]


def write(results: Results, verdicts: Sequence[Verdict], text: str, directory: Path) -> list[Path]:
    """results.json, results.md and the plots."""
    directory.mkdir(parents=True, exist_ok=True)
    everything = {
        "facts": results.facts,
        "peers": results.peers,
        "skipped": results.skipped,
        "measures": results.measures_as_json(),
        "targets": [vars(verdict) | {"verdict": verdict.word} for verdict in verdicts],
    }
    files = {"results.json": json.dumps(everything, indent=1, ensure_ascii=False) + "\n", "results.md": text}
    files |= _plots(results)
    for name, content in files.items():
        (directory / name).write_text(content)
    return [directory / name for name in files]


def _table(results: Results, title: str, columns: list[Column]) -> list[str]:
    rows = []
    for peer in results.peers:
        cells = [_cell(results, peer, column) for column in columns]
        if any(cell not in {"–", ""} for cell in cells):
            rows.append(f"| {_named(results, peer)} | {' | '.join(cells)} |")
    if not rows:
        return []
    heading = " | ".join(heading for heading, *_ in columns)
    return ["", f"## {title}", "", f"| peer | {heading} |", "|---" * (len(columns) + 1) + "|", *rows]


def _named(results: Results, peer: str) -> str:
    return f"**{peer}**" if peer == US else _label(results, peer)


def _label(results: Results, peer: str) -> str:
    return f"{peer} (Redis)" if results.peers[peer]["broker"] == "Redis" else peer


def _cell(results: Results, peer: str, column: Column) -> str:
    _, measure, figure, form = column
    value = results.figure(measure, peer, figure)
    if value is None:
        return "–"
    match form:
        case "rate":
            ratio = None if peer == US else results.ratio(measure, US, peer, figure)
            return f"{value:,.0f}" + ("" if ratio is None else f" ({ratio:.1f}×)")
        case "ms" | "ratio":
            return f"{value:.1f}"
        case "share" | "seconds":
            return f"{value:.2f}"
        case _:
            return f"{value:,.0f}"


def _notes(results: Results) -> list[str]:
    """Why a cell is empty, and where a peer was given fewer jobs than the title says."""
    lines = []
    for measure, cells in results.cells.items():
        for peer, cell in cells.items():
            if cell.note:
                lines.append(f"- {measure}, {peer}: {cell.note}")
        if ALL[measure].once:
            lines.append(f"- {measure}: one cell a peer, with rounds of its own where it varies")
        elif once := [peer for peer, cell in cells.items() if len(cell.rounds) == 1]:
            lines.append(f"- {measure}, measured once: {', '.join(once)}")
        sizes = {peer: cell.median["jobs"] for peer, cell in cells.items() if "jobs" in cell.median}
        if len(set(sizes.values())) > 1:
            shown = ", ".join(f"{peer} {size:,.0f}" for peer, size in sizes.items())
            lines.append(f"- {measure}, jobs per cell after the probe: {shown}")
    return lines


def _plots(results: Results) -> dict[str, str]:
    plots = {}
    for measure, figure, file in (
        ("drain_100k_1p", "jobs_per_s", "drain.svg"),
        ("drain_20k_1p", "jobs_per_s", "drain_20k.svg"),
        ("realistic", "jobs_per_s", "realistic.svg"),
        ("enqueue_bulk", "jobs_per_s", "enqueue_bulk.svg"),
        ("enqueue_one", "jobs_per_s", "enqueue_one.svg"),
        ("pickup", "p50", "pickup.svg"),
    ):
        values = {_label(results, peer): results.figure(measure, peer, figure) for peer in results.peers}
        found = {label: value for label, value in values.items() if value}
        if found:
            about = ALL[measure]
            title = about.title[0].upper() + about.title[1:] + (f" ({figure})" if about.unit == "ms" else "")
            plots[file] = svg.bars(title, about.unit, found, ours=US, best_first=about.higher_is_better)
    series, held = {}, set()
    for peer, cell in results.cells.get("snapshot", {}).items():
        for variant, words in (("plain", "undisturbed"), ("held", "held")) if cell.rounds else ():
            rates = cell.median[variant]
            name = f"{peer}, {words}" + ("" if len(rates) == len(cell.median["plain"]) else ", failed")
            series[name] = rates
            if variant == "held":
                held.add(name)
    if series:
        plots["snapshot.svg"] = svg.lines(
            "Drain rate while one snapshot is held", "jobs/s", series, frozenset(held)
        )
    return plots
