"""`trainyard report JOB`: what a job was, as one HTML page that needs nothing beside itself."""

from infra.job_page.page import Facts, page

__all__ = ["Facts", "page"]
