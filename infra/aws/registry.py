"""ECR: where the stack's images are."""

from __future__ import annotations

import json

import pulumi
from pulumi_aws.ecr import (
    LifecyclePolicy,
    Repository,
    RepositoryEncryptionConfigurationArgs,
    RepositoryImageScanningConfigurationArgs,
)

from infra.settings.aws import AwsRegistry


class Registry(pulumi.ComponentResource):
    """One repository for each image. A tag, once pushed, stays what it is: a job can be run again as it was."""

    urls: dict[str, pulumi.Output[str]]
    """Repository URL by the name in the settings."""

    def __init__(
        self,
        name: str,
        *,
        cluster: str,
        registry: AwsRegistry,
        key_arn: pulumi.Input[str],
        protect: bool,
        opts: pulumi.ResourceOptions,
    ) -> None:
        super().__init__("trainyard:aws:Registry", name, None, opts)
        kept = pulumi.ResourceOptions(parent=self, protect=protect, retain_on_delete=protect)
        self.urls = {}
        for image in registry.repositories:
            repository = Repository(
                f"{image}-images",
                name=f"{cluster}/{image}",
                image_tag_mutability="IMMUTABLE",
                image_scanning_configuration=RepositoryImageScanningConfigurationArgs(scan_on_push=True),
                encryption_configurations=[
                    RepositoryEncryptionConfigurationArgs(encryption_type="KMS", kms_key=key_arn)
                ],
                force_delete=not protect,  # else a repository with images in it is in the way of `down`
                opts=kept,
            )
            LifecyclePolicy(
                f"{image}-images-keep",
                repository=repository.name,
                policy=_keep(registry.keep_images),
                opts=pulumi.ResourceOptions(parent=self),
            )
            self.urls[image] = repository.repository_url
        self.register_outputs({"urls": self.urls})


def _keep(count: int) -> str:
    rule = {
        "rulePriority": 1,
        "description": f"the newest {count} images",
        "selection": {"tagStatus": "any", "countType": "imageCountMoreThan", "countNumber": count},
        "action": {"type": "expire"},
    }
    return json.dumps({"rules": [rule]})
