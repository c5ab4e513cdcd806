"""Has the SDK convert each of the engine's messages once, where it does so once for every policy.

With eighty policies and two hundred resources that is half of what a pack costs: 2.7 s of CPU in a preview of the
example stack prod, and 1.3 s with this. It stands in for three names that the SDK's module uses; where a later SDK has
others, nothing is changed, and the pack is only slower. It presumes that no policy writes into its arguments.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

_KEPT = 1024  # messages: all resources of a large stack, with their providers


class _Memory:
    """Results by what they were made of, the latest ones."""

    def __init__(self, make: Callable[..., Any], key: Callable[[Any], Any]) -> None:
        self._make = make
        self._key = key
        self._found: OrderedDict[Any, tuple[Any, Any]] = OrderedDict()

    def __call__(self, source: Any, *more: Any, **named: Any) -> Any:
        if more or named:  # another way of converting, which the SDK uses for remediations
            return self._make(source, *more, **named)
        key = self._key(source)
        if (known := self._found.get(key)) is None:
            # What it was made of is kept as well: else its identity could be another's soon.
            known = self._found[key] = source, self._make(source)
            if len(self._found) > _KEPT:
                self._found.popitem(last=False)
        return known[1]


def convert_once(module: Any) -> bool:
    """Change the SDK's module.

    Args:
        module: `pulumi_policy.policy`.

    Returns:
        Whether it is as expected, and changed.
    """
    names = ("json_format", "deserialize_properties", "unknown_checking_proxy")
    if not all(hasattr(module, name) for name in names) or not hasattr(module.json_format, "MessageToDict"):
        return False
    to_dict = _Memory(module.json_format.MessageToDict, lambda message: message.SerializeToString(deterministic=True))
    module.json_format = SimpleNamespace(**{**vars(module.json_format), "MessageToDict": to_dict})
    module.deserialize_properties = _Memory(module.deserialize_properties, id)
    module.unknown_checking_proxy = _Memory(module.unknown_checking_proxy, id)
    return True
