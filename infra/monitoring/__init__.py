"""What is measured, drawn and warned of: names of metrics, scrape targets, rules and dashboards, as plain data.

The same data go into a cluster (`infra.in_cluster.monitoring`) and to the Prometheus of a local stack
(`infra.monitoring.local`), so that both mean the same by the same name.
"""
