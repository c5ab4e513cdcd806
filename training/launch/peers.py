"""Telling the death of a peer from a fault of our own: both end a collective with an exception."""

import torch.distributed as dist

# gloo raises plain RuntimeErrors; its transport puts its source file into the message.
_GLOO = ("gloo/transport", "Connection closed by peer", "Connection reset by peer")


def is_lost_peer(error: BaseException) -> bool:
    """Whether an exception says that another worker is gone, or has not answered in time.

    The program is not to blame then: it ends, the launcher forms a new world, and it goes on from the last checkpoint.
    """
    if isinstance(error, dist.DistBackendError | dist.DistNetworkError | dist.DistStoreError):
        return True
    return isinstance(error, RuntimeError) and any(mark in str(error) for mark in _GLOO)
