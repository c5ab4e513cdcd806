"""Building: a rendered context becomes an image by docker, podman or buildah, whichever is on this computer.

tools       which of them is there
containers  podman and buildah, which take the same options
docker      docker with buildx
running     one run of a tool: its output shown, kept and, where it fails, explained
failures    what its output means, in a sentence
steps       how far it is
trust       certificates that only the build sees
registry    digests of images in registries, without any tool
ecr         the login to Amazon's registry
debootstrap a base image where no registry can be reached
"""

from images.builders.built import Built, Tool
from images.builders.tools import find_tool

__all__ = ["Built", "Tool", "find_tool"]
