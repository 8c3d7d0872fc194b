"""What the drivers of machines, virtual or not, are told of images in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from leasekit.drivers.names import check_names


@attrs.frozen(kw_only=True)
class ImagesSettings:
    """``image`` is what a unit has whose lease does not name one of ``images``."""

    images: Mapping[str, Any]
    image: str = ""

    def __attrs_post_init__(self) -> None:
        check_names("images", self.images)
        if self.image and self.image not in self.images:
            raise ValueError(f"image: found {self.image[:60]!r}, expected one of: {', '.join(sorted(self.images))}")
        if not self.image and len(self.images) > 1:
            raise ValueError(f"image: found nothing, expected the default among: {', '.join(sorted(self.images))}")

    @property
    def default_image(self) -> str:
        """The image of a unit whose lease names none."""
        return self.image or next(iter(self.images))
