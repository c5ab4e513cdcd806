"""The ElasticJob controller: keeps the workers of elastic training jobs running.

Data flows one way: informers (`watch`) -> queue of job keys (`queue`) -> `planner.plan`, a pure function -> `executor`.
"""
