"""Whether an image is where the job says, as Artifact Registry tells it. Other registries are not asked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headway.errors import Problem
from headway.targets.vertex.api import Gone, Refused

if TYPE_CHECKING:
    from headway.targets.vertex.api import Client

_IMAGE = re.compile(
    r"(?P<location>[a-z0-9-]+)-docker\.pkg\.dev/(?P<project>[^/]+)/(?P<repository>[^/]+)/(?P<name>[^:@]+)"
    r"(?::(?P<tag>[^@]+))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
GOOGLES_OWN = "vertex-ai"  # the project of the prebuilt images, whose list nobody else may read


def missing(client: Client, uri: str) -> Problem | None:
    """What is wrong with a ready image that is not there. Where we may not look, Vertex AI has the last word."""
    named = _IMAGE.fullmatch(uri)
    if named is None or named["project"] == GOOGLES_OWN:
        return None
    version = ("versions", named["digest"]) if named["digest"] else ("tags", named["tag"] or "latest")
    try:
        client.image(named["project"], named["location"], named["repository"], named["name"], *version)
        return None
    except Gone:
        folder = f"{named['location']}-docker.pkg.dev/{named['project']}/{named['repository']}"
        fix = f"headway image --push; or one of: gcloud artifacts docker images list {folder} --include-tags"
        return Problem(what=f"there is no image {uri}", where="image.uri", fix=fix)
    except Refused:
        return None
