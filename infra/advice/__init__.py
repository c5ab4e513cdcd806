"""What a job should ask for, from what it was seen to use: `trainyard recommend`."""

from infra.advice.rules import Advice, Change, Finding, advise

__all__ = ["Advice", "Change", "Finding", "advise"]
