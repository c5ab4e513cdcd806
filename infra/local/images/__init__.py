"""Images with content on this computer: unpacked from archives, and known to the local clusters by their names.

    <cache>/images/sha256-<config digest>/rootfs, image.json    an image; complete or absent
    <cache>/images/names.json                                   which names lead to which image

Data flows one way: `archive` (what a file says that it holds, checked) -> `unpack` (its layers become a folder) ->
`store` (what there is) -> `table` (what the clusters are told).
"""

from infra.local.images.names import normalised
from infra.local.images.store import ImageStore, StoredImage

__all__ = ["ImageStore", "StoredImage", "normalised"]
