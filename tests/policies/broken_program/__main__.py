"""The program of the stacks, with mistakes of `broken_stacks` made in what it asks for, through a transform."""

import json
import os
import runpy
import sys
from pathlib import Path

import pulumi

CHECKOUT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / "tests/policies")]

from broken_stacks import VARIANTS, Variant  # noqa: E402 - found through the line above

CHOSEN = [each for each in VARIANTS if each.name in json.loads(os.environ["BROKEN_VARIANTS"])]


def is_of(variant: Variant, args: pulumi.ResourceTransformArgs) -> bool:
    """Whether a resource is the one in which a mistake is made."""
    kind = args.type_.rsplit(":", 1)[-1]
    return (kind, args.name) == (variant.kind, variant.resource) and not args.type_.startswith("trainyard:")


def transform(args: pulumi.ResourceTransformArgs) -> pulumi.ResourceTransformResult | None:
    """Make the mistakes that are about this resource."""
    ours = [each for each in CHOSEN if is_of(each, args)]
    if not ours:
        return None
    props = dict(args.props)
    for each in ours:
        each.change(props)
        if each.protect is not None:
            args.opts.protect = each.protect
        if each.ignore_changes is not None:
            args.opts.ignore_changes = list(each.ignore_changes)
    return pulumi.ResourceTransformResult(props=props, opts=args.opts)


pulumi.runtime.register_resource_transform(transform)
runpy.run_path(str(CHECKOUT / "infra/__main__.py"))
