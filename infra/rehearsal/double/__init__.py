"""The AWS provider of a rehearsal: a Pulumi plugin that checks against AWS's own API models and applies to moto.

`server` speaks the engine's protocol, `validation` says what AWS would refuse, `kind` is what one resource type has to
know, `aws` the way to moto; the other modules hold the types of one AWS service each.
"""
