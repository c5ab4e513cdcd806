"""AWS Budgets.

moto keeps budgets and their notifications, but shows neither who is told nor tags: these are in the book.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from infra.rehearsal.double.aws import Aws
from infra.rehearsal.double.kind import Call, Failure, Kind, Made, each, only
from infra.rehearsal.double.tags import tag_list
from infra.rehearsal.double.values import UNKNOWN, map_known

_GONE = ("NotFoundException",)
_BOOK = "budget"
_TIME = "%Y-%m-%d_%H:%M"
"""How Pulumi writes the times of a budget, in UTC: `2027-01-01_00:00`."""
_NEVER = "2087-06-15_00:00"
_ADDRESS = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_TOPIC = re.compile(r"arn:[^:]+:sns:[a-z0-9-]+:\d{12}:.+")
_COST_TYPES = (
    "includeCredit", "includeDiscount", "includeOtherSubscription", "includeRecurring", "includeRefund",
    "includeSubscription", "includeSupport", "includeTax", "includeUpfront", "useAmortized", "useBlended",
)  # fmt: skip
_MOST_NOTIFICATIONS = 10
"""Of one budget; each tells at most ten addresses and one topic (AWS Budgets quotas)."""
_MOST_ADDRESSES = 10


class Budget(Kind):
    """A budget; its id is `account:name`."""

    token = "aws:budgets/budget:Budget"  # noqa: S105 - a type token
    replace_on = frozenset({"name", "accountId"})

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:
        """One CreateBudget."""
        amount, unit = inputs.get("limitAmount"), inputs.get("limitUnit")
        start, end = map_known(inputs.get("timePeriodStart"), _time), map_known(inputs.get("timePeriodEnd"), _time)
        types = inputs.get("costTypes")
        budget = only(
            BudgetName=inputs.get("name"),
            BudgetType=inputs.get("budgetType"),
            TimeUnit=inputs.get("timeUnit"),
            BudgetLimit=None if amount is None and unit is None else only(Amount=amount, Unit=unit),
            CostFilters=_filters(inputs.get("costFilters")),
            CostTypes=None
            if types is None
            else only(**{f"{name[0].upper()}{name[1:]}": types.get(name) for name in _COST_TYPES}),
            TimePeriod=only(Start=start, End=end) or None,
        )
        create = Call(
            "budgets",
            "CreateBudget",
            only(
                # In Check the account isn't at hand; twelve digits are what the model asks for.
                AccountId=inputs.get("accountId") or UNKNOWN,
                Budget=budget,
                NotificationsWithSubscribers=each(inputs.get("notifications"), _notification),
                ResourceTags=tag_list(inputs.get("tags")),
            ),
            {"Budget": "", "BudgetName": "name", "BudgetLimit": "", "Amount": "limitAmount", "Unit": "limitUnit",
             "NotificationsWithSubscribers": "notifications", "TimePeriod": "", "Start": "timePeriodStart",
             "End": "timePeriodEnd", "ResourceTags": "tags"},
        )  # fmt: skip
        return [create]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterator[Failure]:  # noqa: ARG002
        """Amount, times and who is told: AWS Budgets API reference, CreateBudget."""
        yield from _of_limit(inputs)
        yield from _of_period(inputs)
        notifications = inputs.get("notifications") or ()
        seen: set[tuple[Any, ...]] = set()
        for index, notification in enumerate(notifications):
            where = f"notifications[{index}]"
            if index == _MOST_NOTIFICATIONS:
                yield Failure(where, f"a budget has at most {_MOST_NOTIFICATIONS} notifications")
            what = tuple(_condition(notification).values())
            if UNKNOWN not in what and what in seen:
                yield Failure(where, "the same notification stands there already; put all addresses into one")
            seen.add(what)
            yield from _of_subscribers(where, notification)

    def known(self, inputs: Mapping[str, Any], aws: Aws) -> Mapping[str, Any]:
        """The ARN, which has no region: budgets are the account's."""
        name, account = inputs.get("name"), inputs.get("accountId") or aws.account
        if not isinstance(name, str):
            return {"accountId": account}
        return {"accountId": account, "arn": f"arn:{aws.partition}:budgets::{account}:budget/{name}"}

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        account = inputs.get("accountId") or aws.account
        self._put(aws, account, inputs)
        return Made(f"{account}:{inputs['name']}", _period(aws, account, inputs["name"]))

    def read(self, aws: Aws, id: str, state: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: A002, D102
        account, _, name = id.partition(":")
        answer = aws.call("budgets", "DescribeBudget", absent=_GONE, AccountId=account, BudgetName=name)
        if answer is None:
            return None
        budget, noted = answer["Budget"], aws.book.get(_BOOK, id) or {}
        told = aws.call("budgets", "DescribeNotificationsForBudget", AccountId=account, BudgetName=name)
        return {
            "accountId": account,
            "name": name,
            "budgetType": budget["BudgetType"],
            "timeUnit": budget["TimeUnit"],
            "limitAmount": _same_number(budget["BudgetLimit"]["Amount"], state.get("limitAmount")),
            "limitUnit": budget["BudgetLimit"]["Unit"],
            "costFilters": [
                {"name": key, "values": values} for key, values in sorted(budget.get("CostFilters", {}).items())
            ],
            "notifications": _with_subscribers(told["Notifications"], noted.get("notifications", [])),
            "tags": noted.get("tags", {}),
            **_period(aws, account, name),
        }

    def update(  # noqa: D102
        self,
        aws: Aws,
        id: str,  # noqa: A002
        old: Mapping[str, Any],  # noqa: ARG002
        new: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        account, _, name = id.partition(":")
        # moto has no UpdateBudget. A budget is nothing but its definition, so one made anew is the same one changed.
        aws.call("budgets", "DeleteBudget", absent=_GONE, AccountId=account, BudgetName=name)
        self._put(aws, account, new)
        return _period(aws, account, name)

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002, ARG002, D102
        account, _, name = id.partition(":")
        aws.call("budgets", "DeleteBudget", absent=_GONE, AccountId=account, BudgetName=name)
        aws.book.drop(_BOOK, id)

    def _put(self, aws: Aws, account: str, inputs: Mapping[str, Any]) -> None:
        aws.run(self.requests(inputs)[0].given(AccountId=account))
        noted = {"notifications": inputs.get("notifications") or [], "tags": inputs.get("tags") or {}}
        aws.book.put(_BOOK, f"{account}:{inputs['name']}", noted)


def _of_limit(inputs: Mapping[str, Any]) -> Iterator[Failure]:
    amount, unit = inputs.get("limitAmount"), inputs.get("limitUnit")
    if amount is None or unit is None:
        yield Failure("limitAmount" if amount is None else "limitUnit", "a budget needs an amount and its unit")
    if isinstance(amount, str):
        try:
            positive = Decimal(amount) > 0
        except InvalidOperation:
            positive = False
        if not positive:
            yield Failure("limitAmount", f"a positive number as text, not {amount!r}")
    if inputs.get("budgetType") == "COST" and isinstance(unit, str) and not re.fullmatch(r"[A-Z]{3}", unit):
        yield Failure("limitUnit", f"a budget of cost is in a currency, USD, not in {unit!r}")


def _of_period(inputs: Mapping[str, Any]) -> Iterator[Failure]:
    times = {}
    for name in ("timePeriodStart", "timePeriodEnd"):
        text = inputs.get(name)
        if isinstance(text, str):
            try:
                times[name] = datetime.strptime(text, _TIME)  # noqa: DTZ007 - both are UTC
            except ValueError:
                yield Failure(name, f"a time such as 2027-01-01_00:00, not {text!r}")
    if len(times) == 2 and times["timePeriodEnd"] <= times["timePeriodStart"]:
        yield Failure("timePeriodEnd", "the end is not after the start")


def _of_subscribers(where: str, notification: Any) -> Iterator[Failure]:
    addresses = notification.get("subscriberEmailAddresses")
    topics = notification.get("subscriberSnsTopicArns")
    if not addresses and not topics:
        yield Failure(where, "nobody is told: subscriberEmailAddresses or subscriberSnsTopicArns")
    for index, address in enumerate(addresses or ()):
        if index == _MOST_ADDRESSES:
            yield Failure(f"{where}.subscriberEmailAddresses", f"at most {_MOST_ADDRESSES} addresses")
        if isinstance(address, str) and not _ADDRESS.fullmatch(address):
            yield Failure(f"{where}.subscriberEmailAddresses[{index}]", f"{address!r} is no mail address")
    for index, topic in enumerate(topics or ()):
        if index > 0:
            yield Failure(f"{where}.subscriberSnsTopicArns", "at most one topic")
        if isinstance(topic, str) and not _TOPIC.fullmatch(topic):
            yield Failure(f"{where}.subscriberSnsTopicArns[{index}]", f"{topic!r} is no ARN of an SNS topic")
    threshold = notification.get("threshold")
    if isinstance(threshold, int | float) and threshold <= 0:
        yield Failure(f"{where}.threshold", f"more than 0, not {threshold}")


def _filters(given: Any) -> Any:
    if given is None or given is UNKNOWN:
        return given
    named = [(one.get("name"), one.get("values")) for one in given]
    return {name: values for name, values in named if isinstance(name, str)}


def _notification(notification: Any) -> dict[str, Any]:
    addresses = each(notification.get("subscriberEmailAddresses") or [], _by_mail)
    topics = each(notification.get("subscriberSnsTopicArns") or [], _by_topic)
    unknown = addresses is UNKNOWN or topics is UNKNOWN
    subscribers = UNKNOWN if unknown else [*addresses, *topics]
    return {
        "Notification": only(**_condition(notification)),
        "Subscribers": subscribers,
    }


def _condition(notification: Any) -> dict[str, Any]:
    """When a notification is sent: what tells it from the budget's others."""
    return {
        "NotificationType": notification.get("notificationType"),
        "ComparisonOperator": notification.get("comparisonOperator"),
        "Threshold": notification.get("threshold"),
        "ThresholdType": notification.get("thresholdType"),
    }


def _by_mail(address: Any) -> dict[str, Any]:
    return {"SubscriptionType": "EMAIL", "Address": address}


def _by_topic(topic: Any) -> dict[str, Any]:
    return {"SubscriptionType": "SNS", "Address": topic}


def _with_subscribers(found: list[Any], noted: list[Any]) -> list[dict[str, Any]]:
    """The notifications that are there, each with those whom the book knows for it."""
    known = {tuple(_condition(one).values()): one for one in noted}
    shown = []
    for notification in found:
        condition = {name: notification[name] for name in _condition({})}
        lowered = {f"{name[0].lower()}{name[1:]}": value for name, value in condition.items()}
        shown.append(known.get(tuple(condition.values()), lowered))
    return shown


def _period(aws: Aws, account: str, name: str) -> dict[str, str]:
    """When it begins and ends: what isn't given AWS fills with this month and a day that never comes."""
    budget = aws.call("budgets", "DescribeBudget", AccountId=account, BudgetName=name)["Budget"]
    period = budget["TimePeriod"]
    end = period["End"].strftime(_TIME) if "End" in period else _NEVER
    return {"timePeriodStart": period["Start"].strftime(_TIME), "timePeriodEnd": end}


def _time(text: str) -> Any:
    try:
        return datetime.strptime(text, _TIME).isoformat()  # noqa: DTZ007 - both are UTC
    except ValueError:
        return UNKNOWN  # `rules` says what is wrong with it


def _same_number(found: str, kept: Any) -> str:
    """`500` and `500.0` are one amount."""
    return kept if isinstance(kept, str) and Decimal(kept) == Decimal(found) else found


KINDS = (Budget(),)
