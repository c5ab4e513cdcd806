"""A monthly budget of what the stack costs, with mail before it is too late."""

from __future__ import annotations

import pulumi
from pulumi_aws.budgets import Budget as AwsBudgetResource
from pulumi_aws.budgets import BudgetCostFilterArgs, BudgetNotificationArgs

from infra.settings.aws import AwsBudget

# What was spent, of the limit in percent; and what the month is forecast to cost.
_NOTICES = (("ACTUAL", 80), ("ACTUAL", 100), ("FORECASTED", 100))


class Budget(pulumi.ComponentResource):
    """Counts what carries the stack's tag.

    The tag counts from the day on which it is activated as a cost allocation tag, in the billing console of the
    account that pays.
    """

    def __init__(
        self, name: str, *, cluster: str, budget: AwsBudget, tag: tuple[str, str], opts: pulumi.ResourceOptions
    ) -> None:
        super().__init__("trainyard:aws:Budget", name, None, opts)
        key, value = tag
        AwsBudgetResource(
            "budget",
            name=cluster,
            budget_type="COST",
            time_unit="MONTHLY",
            limit_amount=f"{budget.monthly_usd}",
            limit_unit="USD",
            cost_filters=[BudgetCostFilterArgs(name="TagKeyValue", values=[f"user:{key}${value}"])],
            notifications=[
                BudgetNotificationArgs(
                    notification_type=kind,
                    comparison_operator="GREATER_THAN",
                    threshold=percent,
                    threshold_type="PERCENTAGE",
                    subscriber_email_addresses=list(budget.emails),
                )
                for kind, percent in _NOTICES
            ],
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.register_outputs({})
