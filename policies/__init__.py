"""Policies on what will be created: a CrossGuard pack for `pulumi preview --policy-pack policies`."""
