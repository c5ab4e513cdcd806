"""Images: one row of the matrix becomes a build context, which is checked, built and handed to a cluster.

Data flows one way: `matrix` (what can be combined) -> `render` (a build context) -> `lint`, `diff` (what is wrong with
it, what changed) -> `builders` (docker, podman or buildah). Nothing here knows Pulumi or a stack; which row a pool runs
is decided in `infra.wiring.images`.
"""
