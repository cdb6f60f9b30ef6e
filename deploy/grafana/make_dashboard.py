"""Writes dashboards/tokend.json from the panels below: `make dashboard`. A test demands that the two agree.

A panel is a title, what it tells, and its queries. In a query SEL stands for the chosen job and instances, METHOD for
the chosen methods besides, and WINDOW for a time that fits the zoom and the scrape interval.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent / "dashboards" / "tokend.json"
SEL = 'job=~"$job", instance=~"$instance"'
METHOD = f'{SEL}, method=~"$method"'
UNARY = f'{SEL}, grpc_service="tokend.v1.TokenizerService", grpc_type="unary", grpc_method=~"$method"'
OURS = f'{SEL}, grpc_service="tokend.v1.TokenizerService"'
NOT_WELL = f'{SEL}, grpc_code!="OK"'
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
PALETTE = {"mode": "palette-classic"}


@dataclass(frozen=True, kw_only=True)
class Panel:
    title: str
    tells: str
    queries: dict[str, str]
    """Expression by legend; of a table the legend is not shown."""
    kind: str = "timeseries"
    """`timeseries`, `stacked`, `heatmap`, `stat` or `table`."""
    unit: str = "short"
    width: int = 12
    height: int = 8


def rate(metric: str, selector: str, by: str = "") -> str:
    """The sum of a counter's rates, by some labels."""
    grouped = f"sum by ({by}) " if by else "sum"
    return f"{grouped}(rate({metric}{{{selector}}}[$__rate_interval]))"


def quantile(q: float, metric: str, selector: str, by: str = "") -> str:
    """A quantile of a histogram, by some labels."""
    labels = f"{by}, le" if by else "le"
    return (
        f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket{{{selector}}}[$__rate_interval])))"
    )


def heat(metric: str, selector: str) -> dict[str, str]:
    """What a heat map shows: how many fell into each bucket."""
    return {"{{le}}": f"sum by (le) (increase({metric}_bucket{{{selector}}}[$__rate_interval]))"}


def stat(title: str, tells: str, query: str, unit: str = "short") -> Panel:
    return Panel(title=title, tells=tells, queries={title: query}, kind="stat", unit=unit, width=3, height=4)


SHARE_FAILED = (
    f'(sum(rate(grpc_server_handled_total{{{OURS}, grpc_code=~"Internal|Unknown|DataLoss|Unavailable"}}[$__rate_interval]))'
    f" / {rate('grpc_server_handled_total', OURS)})"
)

ROWS: dict[str, list[Panel]] = {
    "At a glance": [
        stat("Tokens a second", "All methods and callers.", rate("tokend_tokens_total", SEL)),
        stat("Calls a second", "Calls that ended.", rate("grpc_server_handled_total", OURS), "reqps"),
        stat(
            "Failed by the server",
            "Share of the calls that ended with Internal, Unknown, DataLoss or Unavailable.",
            SHARE_FAILED,
            "percentunit",
        ),
        stat(
            "Unary calls, p99",
            "From arrival to end.",
            quantile(0.99, "grpc_server_handling_seconds", UNARY),
            "s",
        ),
        stat("Open streams", "StreamEncode and StreamDecode.", f"sum(tokend_live_streams{{{SEL}}})"),
        stat(
            "Open sequences", "Conversations that are being decoded.", f"sum(tokend_live_sequences{{{SEL}}})"
        ),
        stat(
            "Workers that serve",
            "One process is one worker.",
            f'sum(tokend_workers{{{SEL}, state="serving"}})',
        ),
        stat(
            "Tokenizers served",
            "More than 1: the same text gives other ids from one pod than from another.",
            f"count(count by (fingerprint) (tokend_tokenizer_info{{{SEL}}}))",
        ),
    ],
    "Tokens": [
        Panel(
            title="Tokens a second by method",
            tells="Ids sent (encoding) or taken (decoding). They move with each message of a stream.",
            queries={"{{method}}": rate("tokend_tokens_total", METHOD, "method")},
            kind="stacked",
        ),
        Panel(
            title="Tokens a second by caller",
            tells="Who uses how much: callers by the names of their tokens.",
            queries={"{{caller}}": rate("tokend_tokens_total", METHOD, "caller")},
            kind="stacked",
        ),
        Panel(
            title="Tokens per request",
            tells="How large requests are: a unary call, a batch of a StreamEncode, a sequence of a StreamDecode.",
            queries=heat("tokend_request_tokens", METHOD),
            kind="heatmap",
        ),
        Panel(
            title="Tokens per request, p50 and p99",
            tells="Half of the requests have fewer, and 99 of 100.",
            queries={
                "p50 {{method}}": quantile(0.5, "tokend_request_tokens", METHOD, "method"),
                "p99 {{method}}": quantile(0.99, "tokend_request_tokens", METHOD, "method"),
            },
        ),
        Panel(
            title="Tokens per request by caller, p90",
            tells="Whose requests are large.",
            queries={"{{caller}}": quantile(0.9, "tokend_request_tokens", METHOD, "caller")},
            width=6,
        ),
        Panel(
            title="Characters per token",
            tells="How well the tokenizer fits the traffic; a fall means other languages, or data that is no text.",
            queries={
                "{{method}}": f"{rate('tokend_characters_total', METHOD, 'method')}"
                f" / {rate('tokend_tokens_total', METHOD, 'method')}"
            },
            width=6,
        ),
        Panel(
            title="Text a second",
            tells="UTF-8 bytes taken (encoding) or made (decoding).",
            queries={"{{method}}": rate("tokend_text_bytes_total", METHOD, "method")},
            unit="Bps",
            width=6,
        ),
        Panel(
            title="Texts a second",
            tells="Texts taken or made; a sequence of a stream counts when it ends.",
            queries={"{{method}}": rate("tokend_texts_total", METHOD, "method")},
            width=6,
        ),
    ],
    "Latency": [
        Panel(
            title="Unary calls, how long they take",
            tells="From arrival to end.",
            queries=heat("grpc_server_handling_seconds", UNARY),
            kind="heatmap",
            unit="s",
        ),
        Panel(
            title="Unary calls, p50, p95 and p99",
            tells="From arrival to end.",
            queries={
                "p50": quantile(0.5, "grpc_server_handling_seconds", UNARY),
                "p95": quantile(0.95, "grpc_server_handling_seconds", UNARY),
                "p99": quantile(0.99, "grpc_server_handling_seconds", UNARY),
            },
            unit="s",
        ),
        Panel(
            title="Unary calls by method, p99",
            tells="Who is slow.",
            queries={"{{grpc_method}}": quantile(0.99, "grpc_server_handling_seconds", UNARY, "grpc_method")},
            unit="s",
            width=6,
        ),
        Panel(
            title="Waiting and work, mean",
            tells="What a unary call spends waiting for a thread, and working. Where waiting is most, add workers.",
            queries={
                "waiting": f"sum(rate(tokend_queue_seconds_sum{{{METHOD}}}[$__rate_interval]))"
                f" / sum(rate(tokend_queue_seconds_count{{{METHOD}}}[$__rate_interval]))",
                "work": f"sum(rate(tokend_work_seconds_sum{{{METHOD}}}[$__rate_interval]))"
                f" / sum(rate(tokend_work_seconds_count{{{METHOD}}}[$__rate_interval]))",
            },
            kind="stacked",
            unit="s",
            width=6,
        ),
        Panel(
            title="Waiting for a thread by method, p99",
            tells="When it grows, the server is saturated.",
            queries={"{{method}}": quantile(0.99, "tokend_queue_seconds", METHOD, "method")},
            unit="s",
            width=6,
        ),
        Panel(
            title="One message of a stream",
            tells="From taking a message of a stream to having its answer.",
            queries={
                "p50 {{method}}": quantile(0.5, "tokend_message_seconds", METHOD, "method"),
                "p99 {{method}}": quantile(0.99, "tokend_message_seconds", METHOD, "method"),
            },
            unit="s",
            width=6,
        ),
    ],
    "Errors and refusals": [
        Panel(
            title="Calls that did not end well",
            tells="By gRPC's code. Canceled and DeadlineExceeded are callers who left.",
            queries={
                "{{grpc_code}}": f'sum by (grpc_code) (rate(grpc_server_handled_total{{{OURS}, grpc_code!="OK"}}'
                "[$__rate_interval])) > 0"
            },
            unit="reqps",
        ),
        Panel(
            title="Refusals by reason",
            tells="Calls, batches and sequences; docs/errors.md says what each means and what to do.",
            queries={"{{reason}}": f"{rate('tokend_refusals_total', METHOD, 'reason')} > 0"},
        ),
        Panel(
            title="Calls by caller",
            tells="Callers by the names of their tokens; who showed no valid one is anonymous.",
            queries={"{{caller}}": rate("tokend_caller_calls_total", SEL, "caller")},
            kind="stacked",
            unit="reqps",
        ),
        Panel(
            title="Calls by caller that did not end well",
            tells="Whose calls fail or are refused.",
            queries={"{{caller}}": f"{rate('tokend_caller_calls_total', NOT_WELL, 'caller')} > 0"},
            unit="reqps",
        ),
        Panel(
            title="Special tokens in callers' texts",
            tells="Control-token strings kept as text, and texts refused for one.",
            queries={
                "kept": rate("tokend_special_text_total", METHOD),
                "rejected": rate("tokend_refusals_total", f'{METHOD}, reason="SPECIAL_TOKEN_REJECTED"'),
            },
            width=8,
        ),
        Panel(
            title="Unknown ids",
            tells="Ids that this tokenizer does not have: skipped or replaced, and requests refused for one.",
            queries={
                "let pass": rate("tokend_unknown_ids_total", METHOD),
                "refused": rate("tokend_refusals_total", f'{METHOD}, reason="UNKNOWN_TOKEN_ID"'),
            },
            width=8,
        ),
        Panel(
            title="Broken characters",
            tells="Share of U+FFFD in the characters made. Users see them.",
            queries={
                "{{method}}": f"{rate('tokend_replacement_characters_total', METHOD, 'method')}"
                f" / {rate('tokend_characters_total', METHOD, 'method')}"
            },
            unit="percentunit",
            width=8,
        ),
    ],
    "Saturation": [
        Panel(
            title="Unary calls in flight, and threads",
            tells="Calls beyond the threads wait.",
            queries={
                "in flight": f"sum(tokend_in_flight_calls{{{SEL}}})",
                "threads": f"sum(tokend_unary_threads{{{SEL}}})",
            },
            width=6,
        ),
        Panel(
            title="Work, of what fits",
            tells="Texts and bytes in work against their limits. At 1 unary calls are refused, and streams wait.",
            queries={
                "bytes, {{kind}}": f"sum by (kind) (tokend_work_bytes{{{SEL}}}) / sum by (kind) (tokend_max_work_bytes{{{SEL}}})",
                "texts, {{kind}}": f"sum by (kind) (tokend_work_texts{{{SEL}}}) / sum by (kind) (tokend_max_work_texts{{{SEL}}})",
            },
            unit="percentunit",
            width=6,
        ),
        Panel(
            title="Streams, of those that fit",
            tells="At 1 new streams are refused.",
            queries={
                "{{instance}}": f"sum by (instance) (tokend_live_streams{{{SEL}}})"
                f" / sum by (instance) (tokend_max_streams{{{SEL}}})"
            },
            unit="percentunit",
            width=6,
        ),
        Panel(
            title="Cores in use",
            tells="CPU seconds a second. A worker far above the others has most of the connections.",
            queries={
                "{{instance}} worker {{worker}}": rate(
                    "tokend_worker_cpu_seconds_total", SEL, "instance, worker"
                ),
                "{{instance}}, all": rate("process_cpu_seconds_total", SEL, "instance"),
            },
            width=6,
        ),
        Panel(
            title="Memory",
            tells="Of a worker, and of all processes of a server; shared pages count once.",
            queries={
                "{{instance}} worker {{worker}}": f"tokend_worker_memory_bytes{{{SEL}}}",
                "{{instance}}, all": f"process_resident_memory_bytes{{{SEL}}}",
            },
            unit="bytes",
            width=6,
        ),
        Panel(
            title="Workers",
            tells="By state; `down` is dead, and waiting to be started again.",
            queries={"{{state}}": f"sum by (state) (tokend_workers{{{SEL}}})"},
            kind="stacked",
            width=6,
        ),
        Panel(
            title="Workers started again",
            tells="In the place of one that died.",
            queries={
                "{{instance}}": f"sum by (instance) (increase(tokend_worker_restarts_total{{{SEL}}}[$__rate_interval]))"
            },
            width=6,
        ),
        Panel(
            title="Open file descriptors",
            tells="All processes of a server; each connection takes one.",
            queries={"{{instance}}": f"process_open_fds{{{SEL}}}"},
            width=6,
        ),
    ],
    "Streams": [
        Panel(
            title="Open streams",
            tells="StreamEncode and StreamDecode.",
            queries={"{{method}}": f"sum by (method) (tokend_live_streams{{{SEL}}})"},
            width=6,
        ),
        Panel(
            title="Open sequences",
            tells="Conversations that are being decoded.",
            queries={"{{instance}}": f"sum by (instance) (tokend_live_sequences{{{SEL}}})"},
            width=6,
        ),
        Panel(
            title="Messages of streams a second",
            tells="In and out.",
            queries={
                "in {{grpc_method}}": rate(
                    "grpc_server_msg_received_total", f'{OURS}, grpc_type="bidi_stream"', "grpc_method"
                ),
                "out {{grpc_method}}": rate(
                    "grpc_server_msg_sent_total", f'{OURS}, grpc_type="bidi_stream"', "grpc_method"
                ),
            },
            width=6,
        ),
        Panel(
            title="Tokens in a message of a stream",
            tells="The message is the cost: more tokens in each one make a stream cheaper.",
            queries={
                "{{method}}": f'sum by (method) (rate(tokend_tokens_total{{{SEL}, method=~"Stream.*"}}[$__rate_interval]))'
                f" / sum by (method) (rate(tokend_message_seconds_count{{{SEL}}}[$__rate_interval]))"
            },
            width=6,
        ),
    ],
    "Engines": [
        Panel(
            title="Texts a second by engine",
            tells="Texts that ask for offsets or tokens, pairs and odd texts go to the reference always.",
            queries={"{{engine}}": rate("tokend_engine_texts_total", SEL, "engine")},
            kind="stacked",
            width=8,
        ),
        Panel(
            title="Standing of the fast engine",
            tells="Workers by state. `quarantined`: a fault ended it for good; see the runbook.",
            queries={"{{state}}": f"sum by (state) (tokend_engine_state{{{SEL}}})"},
            kind="stacked",
            width=8,
        ),
        Panel(
            title="Shadow checks and faults",
            tells="Answers made again by the reference; `different` must stay 0, and so should the faults.",
            queries={
                "check: {{result}}": rate("tokend_shadow_checks_total", SEL, "result"),
                "engine failures": rate("tokend_engine_failures_total", SEL),
                "lines that native libraries print": rate("tokend_native_stderr_lines_total", SEL),
            },
            width=8,
        ),
    ],
    "Who serves what": [
        Panel(
            title="Tokenizer of each instance",
            tells="All should have one fingerprint, the sha256 of the tokenizer file.",
            queries={
                "": f"sum by (instance, name, fingerprint, model_type, engine, streaming, reference_version)"
                f" (tokend_tokenizer_info{{{SEL}}})"
            },
            kind="table",
            width=16,
        ),
        Panel(
            title="Version of each instance",
            tells="Of the server, and of Python.",
            queries={"": f"sum by (instance, version, python) (tokend_build_info{{{SEL}}})"},
            kind="table",
            width=8,
        ),
        Panel(
            title="Instances by fingerprint",
            tells="Two lines for longer than a rollout: two tokenizers are served.",
            queries={"{{fingerprint}}": f"count by (fingerprint) (tokend_tokenizer_info{{{SEL}}})"},
            width=6,
        ),
        Panel(
            title="Workers with an older file",
            tells="Of tokens or certificates: the changed file is wrong or gone, and the one before stays in force.",
            queries={"{{file}}": f"sum by (file) (tokend_stale_files{{{SEL}}})"},
            width=6,
        ),
        Panel(
            title="Certificate, time left",
            tells="Of the certificate that is shown to clients; 0 without TLS.",
            queries={
                "{{instance}}": f"clamp_min(tokend_tls_certificate_expiry_timestamp_seconds{{{SEL}}} - time(), 0)"
            },
            unit="s",
            width=6,
        ),
        Panel(
            title="Up since",
            tells="How long each server has run.",
            queries={"{{instance}}": f"time() - process_start_time_seconds{{{SEL}}}"},
            unit="s",
            width=6,
        ),
    ],
}


def target(expression: str, legend: str, ref: str, kind: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "datasource": DATASOURCE,
        "expr": expression,
        "legendFormat": legend,
        "refId": ref,
    }
    if kind == "table":
        made |= {"format": "table", "instant": True}
    elif kind == "heatmap":
        made |= {"format": "heatmap"}
    return made


def details(panel: Panel) -> dict[str, Any]:
    """What differs from one kind of panel to the other."""
    if panel.kind == "stat":
        options = {
            "colorMode": "none",
            "graphMode": "area",
            "reduceOptions": {"calcs": ["lastNotNull"], "values": False},
        }
        return {"type": "stat", "options": options}
    if panel.kind == "heatmap":
        return {
            "type": "heatmap",
            "options": {
                "calculate": False,
                "cellGap": 1,
                "color": {"mode": "scheme", "scheme": "Oranges", "exponent": 0.5, "steps": 64},
                "filterValues": {"le": 1e-9},
                "yAxis": {"axisPlacement": "left", "unit": panel.unit},
                "legend": {"show": True},
            },
        }
    if panel.kind == "table":
        hidden = {"Time": True, "Value": True}
        return {
            "type": "table",
            "options": {"showHeader": True},
            "transformations": [{"id": "organize", "options": {"excludeByName": hidden}}],
        }
    return {
        "type": "timeseries",
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


def field_config(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.kind in {"timeseries", "stacked"}:
        custom: dict[str, Any] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 0,
            "showPoints": "never",
        }
        if panel.kind == "stacked":
            custom |= {"fillOpacity": 25, "stacking": {"mode": "normal", "group": "A"}}
        defaults |= {"color": PALETTE, "custom": custom, "min": 0}
    return {"defaults": defaults, "overrides": []}


def laid_out() -> list[dict[str, Any]]:
    """All panels, each at its place: rows from left to right, 24 columns wide."""
    made: list[dict[str, Any]] = []
    y = 0
    for row, panels in ROWS.items():
        place = {"x": 0, "y": y, "w": 24, "h": 1}
        made.append(
            {
                "id": len(made) + 1,
                "type": "row",
                "title": row,
                "collapsed": False,
                "gridPos": place,
                "panels": [],
            }
        )
        y, x, height = y + 1, 0, 0
        for panel in panels:
            if x + panel.width > 24:
                y, x, height = y + height, 0, 0
            refs = "ABCDEFGH"
            made.append(
                {
                    "id": len(made) + 1,
                    "title": panel.title,
                    "description": panel.tells,
                    "datasource": DATASOURCE,
                    "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
                    "fieldConfig": field_config(panel),
                    "targets": [
                        target(expression, legend, refs[n], panel.kind)
                        for n, (legend, expression) in enumerate(panel.queries.items())
                    ],
                    **details(panel),
                }
            )
            x, height = x + panel.width, max(height, panel.height)
        y += height
    return made


def variable(name: str, label: str, query: str, *, multi: bool) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": multi,
        "includeAll": multi,
        "allValue": ".*" if multi else None,
        "current": {"selected": True, "text": "All", "value": "$__all"} if multi else {},
    }


def dashboard() -> dict[str, Any]:
    return {
        "uid": "tokend",
        "title": "tokend",
        "description": "Tokens, latency, errors, saturation, streams, engines and tokenizers of tokend servers.",
        "tags": ["tokend"],
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                    "current": {},
                },
                variable("job", "Job", "label_values(tokend_build_info, job)", multi=False),
                variable(
                    "instance",
                    "Instance",
                    'label_values(tokend_build_info{job=~"$job"}, instance)',
                    multi=True,
                ),
                variable(
                    "method",
                    "Method",
                    'label_values(tokend_queue_seconds_count{job=~"$job"}, method)',
                    multi=True,
                ),
            ]
        },
        "panels": laid_out(),
    }


def main(arguments: list[str]) -> int:
    """Write the file; with `--check` only tell whether it is as it would be written."""
    text = json.dumps(dashboard(), indent=1) + "\n"
    if arguments == ["--check"]:
        if TARGET.exists() and TARGET.read_text(encoding="utf-8") == text:
            return 0
        print(f"{TARGET.name} is not what make_dashboard.py makes: run 'make dashboard'", file=sys.stderr)
        return 1
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
