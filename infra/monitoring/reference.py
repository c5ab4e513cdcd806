"""Writes the reference page of the metrics: `python -m infra.monitoring.reference`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from infra.clusters import CHECKOUT
from infra.monitoring.dashboards import DASHBOARDS
from infra.monitoring.metric_names import EXPORTERS, TARGET_LABELS, Metric
from infra.monitoring.rules import RECORDINGS, Limits, alerts

PAGE = CHECKOUT / "docs/reference/metrics.md"

_HEAD = """\
# Metrics

What is exported, by whom, and what rules make of it. Made by `python -m infra.monitoring.reference` from
`infra/monitoring`; a test holds our own exporters, the rules and the dashboards against it. How they are gathered and
what to do about an alert: [monitoring](../how-to/monitoring.md).

Of exporters that are not this project's, only what rules and dashboards use is listed. A histogram `NAME` has the
series `NAME_bucket`, `NAME_sum` and `NAME_count`. Controllers that serve PyTorchJobs export their own set once more,
under `trainyard_pytorchjob_`.
"""


def page() -> str:
    """The page as Markdown."""
    return _HEAD + "".join(_sections())


def _sections() -> Iterator[str]:
    for exporter in EXPORTERS:
        where = f"{exporter.where[0].upper()}{exporter.where[1:]}"
        yield f"\n## {exporter.title}\n\n{where}. Source: {exporter.source}.\n\n"
        yield "| metric | type | is |\n| --- | --- | --- |\n"
        yield from (f"| `{_with_labels(metric)}` | {metric.kind} | {metric.text} |\n" for metric in exporter.metrics)
    yield "\n## Labels that scraping adds\n\n| label | is |\n| --- | --- |\n"
    yield from (f"| `{name}` | {text} |\n" for name, text in TARGET_LABELS.items())
    yield "\n## Recorded by rules\n\n| series | is |\n| --- | --- |\n"
    yield from (f"| `{each.name}` | {each.text} |\n" for each in RECORDINGS)
    yield "| `trainyard:machine_usd_per_hour{pool,instance_type}` | What the price table says of an hour, in USD. |\n"
    yield "\n## Alerts\n\n| alert | severity | when | for |\n| --- | --- | --- | --- |\n"
    for alert in alerts(Limits()):
        where = f"[{alert.name}](../how-to/monitoring.md#{alert.name.lower()})"
        expr = alert.expr.replace("|", "\\|")
        yield f"| {where} | {alert.severity} | `{expr}` | {alert.minutes} min |\n"
    yield "\n## Dashboards\n\n| uid | title | panels |\n| --- | --- | --- |\n"
    for dashboard in DASHBOARDS:
        titles = ", ".join(panel.title for row in dashboard.rows for panel in row)
        yield f"| `{dashboard.uid}` | {dashboard.title} | {titles} |\n"


def _with_labels(metric: Metric) -> str:
    return f"{metric.name}{{{','.join(metric.labels)}}}" if metric.labels else metric.name


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
