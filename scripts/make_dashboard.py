"""Writes configs/monitoring/dashboard.json, a Grafana dashboard, from the table below.

    python -m scripts.make_dashboard

Import it in Grafana and choose a Prometheus data source that scrapes weft's /metrics.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATH = Path(__file__).resolve().parent.parent / "configs" / "monitoring" / "dashboard.json"
_WIDTH, _HEIGHT, _ROW = 8, 7, 24


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str  # in Grafana's words
    series: tuple[tuple[str, str], ...]  # (expression, legend)
    help: str = ""
    most: float | None = None


def _rate(metric: str, by: str = "") -> str:
    return f'sum{f" by ({by})" if by else ""} (rate({metric}{{model_name=~"$model"}}[$__rate_interval]))'


def _quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    rates = _rate(f"{metric}_bucket", "le")
    return tuple((f"histogram_quantile({q}, {rates})", f"p{round(q * 100)}") for q in (0.5, 0.9, 0.99))


def _gauge(metric: str) -> str:
    return f'sum ({metric}{{model_name=~"$model"}})'


ROWS: dict[str, tuple[Panel, ...]] = {
    "What people feel": (
        Panel("Time to first token", "s", _quantiles("vllm:time_to_first_token_seconds")),
        Panel("Between tokens", "s", _quantiles("vllm:inter_token_latency_seconds")),
        Panel("Whole request", "s", _quantiles("vllm:e2e_request_latency_seconds")),
        Panel("Requests that ended, by how", "reqps", ((_rate("vllm:request_success_total", "finished_reason"), "{{finished_reason}}"),)),
        Panel("Refused, by reason", "reqps", (("sum by (reason) (rate(weft_requests_refused_total[$__rate_interval]))", "{{reason}}"),), "Of the whole server: many are refused before they mean a model."),
        Panel("Open streams", "short", ((_gauge("weft_open_streams"), "open"),)),
    ),
    "The engine": (
        Panel("Tokens a second", "short", ((_rate("vllm:prompt_tokens_total"), "prompt"), (_rate("vllm:generation_tokens_total"), "generated"))),
        Panel("Batch and queue", "short", ((_gauge("vllm:num_requests_running"), "running"), (_gauge("vllm:num_requests_waiting"), "waiting")), "Streams with pages, and without."),
        Panel("Waiting, by class", "short", (('sum by (class) (weft_requests_waiting_by_class{model_name=~"$model"})', "{{class}}"),)),
        Panel("Pages in use", "percentunit", (('max (vllm:kv_cache_usage_perc{model_name=~"$model"})', "in use"),), most=1.0),
        Panel("Prompt tokens found in the prefix cache", "percentunit", ((f'{_rate("vllm:prefix_cache_hits_total")} / {_rate("vllm:prefix_cache_queries_total")}', "hits"),), most=1.0),
        Panel("Preemptions", "ops", ((_rate("vllm:num_preemptions_total"), "preempted"),), "Streams whose prompts are computed again because pages ran out."),
        Panel("Where the loop's time goes", "percentunit", ((_rate("weft_host_seconds_total"), "host"), (_rate("weft_device_wait_seconds_total"), "waiting for the device")), "Seconds a second. Host time hides behind the device's as long as there is waiting.", 1.0),
        Panel("Steps a second", "ops", ((_rate("weft_engine_steps_total"), "steps"),)),
        Panel("Time in the queue", "s", _quantiles("vllm:request_queue_time_seconds")),
    ),
    "The door": (
        Panel("Refused by the gateway, by reason", "reqps", (("sum by (reason) (rate(weft_admission_refusals_total[$__rate_interval]))", "{{reason}}"),)),
        Panel("Predicted wait", "s", (("max by (priority) (weft_predicted_wait_seconds)", "{{priority}}"),), "To the first token of a request that came now."),
        Panel("Degradation", "short", (("max (weft_degradation_rung)", "rung"),), "0 normal, 1 batch work is shed, 2 output is capped, 3 a smaller model answers, 4 refusing.", 3.0),
        Panel("Tokens a second, by tenant", "short", (("sum by (tenant) (rate(weft_tenant_tokens_total[$__rate_interval]))", "{{tenant}}"),)),
        Panel("Requests, by tenant", "reqps", (("sum by (tenant) (rate(weft_tenant_requests_total[$__rate_interval]))", "{{tenant}}"),)),
        Panel("Stores", "short", (("min (weft_limit_store_up)", "limits up"), ("sum (increase(weft_usage_write_failures_total[5m]))", "usage writes failed"), ("sum (increase(weft_events_lost_total[5m]))", "events lost")), "The stores of limits, of usage and of events."),
    ),
}  # fmt: skip


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append(
            {"type": "row", "title": title, "collapsed": False, "gridPos": _place(0, top, _ROW, 1), "panels": []}
        )
        top += 1
        for number, panel in enumerate(row):
            left, down = number * _WIDTH % _ROW, number * _WIDTH // _ROW * _HEIGHT
            panels.append(_panel(panel, _place(left, top + down, _WIDTH, _HEIGHT)))
        top += -(-len(row) * _WIDTH // _ROW) * _HEIGHT
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    return {
        "title": "weft",
        "uid": "weft",
        "tags": ["weft", "llm"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [_SOURCE, _MODEL]},
        "panels": panels,
    }


_DATA_SOURCE = {"type": "prometheus", "uid": "${source}"}
_SOURCE = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
_MODEL = {
    "name": "model",
    "label": "Model",
    "type": "query",
    "datasource": _DATA_SOURCE,
    "query": {"query": "label_values(weft_engine_up, model_name)", "refId": "models"},
    "refresh": 2,
    "includeAll": True,
    "multi": True,
    "current": {"text": "All", "value": "$__all"},
}


def _place(left: int, top: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    limits = {} if panel.most is None else {"max": panel.most}
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.help,
        "datasource": _DATA_SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, **limits, "custom": {"fillOpacity": 8}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": _DATA_SOURCE, "expr": expression, "legendFormat": legend}
            for number, (expression, legend) in enumerate(panel.series)
        ],
    }  # fmt: skip


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
    print(PATH)
