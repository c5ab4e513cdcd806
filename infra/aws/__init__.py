"""The EKS cluster of `target: aws` and what belongs to it: one component a file, put together in `stack`.

Plain `pulumi_aws` resources: the layout of network interfaces, reservations, placement and desired size all need what
ready-made EKS components do not offer. Components translate; what they translate is decided in `infra.wiring`.
"""
