"""A strict Google Cloud Storage for tests: the XML API, which obstore speaks, and the JSON API of Google's client.

It holds to the documented behaviour: generations, preconditions, ETags, ranges, paged listings, multipart and resumable
uploads, missing buckets, and a token on every request. What it does not know it refuses with 501, never in silence:
a client that relies on more than is checked here shows up at once. Costs a thread; objects live in memory.
"""

from __future__ import annotations

from tests.servers import gcs_json, gcs_xml
from tests.servers.gcs_state import Objects, Refusal
from tests.servers.loopback import Answer, LoopbackServer, Request

TOKEN = "token-of-a-test"


class GcsServer(LoopbackServer):
    """`with GcsServer("bucket") as gcs:` then point a client at `gcs.url` with TOKEN, or one added to `tokens`."""

    def __init__(self, *buckets: str, page: int = 1000) -> None:
        super().__init__(self._serve)
        self.objects = Objects(*buckets, page=page)
        self.tokens = {TOKEN}

    def __enter__(self) -> GcsServer:
        super().__enter__()
        return self

    def _serve(self, request: Request) -> Answer:
        is_json = request.path.startswith(gcs_json.PATHS)
        serve, refused = (gcs_json.serve, gcs_json.refused) if is_json else (gcs_xml.serve, gcs_xml.refused)
        try:
            self._authenticate(request)
            if "transfer-encoding" in request.headers:
                raise Refusal(411, "MissingContentLength", "Send a Content-Length.")
            return serve(self.objects, request)
        except Refusal as refusal:
            return refused(refusal)

    def _authenticate(self, request: Request) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme != "Bearer" or token not in self.tokens:
            raise Refusal(401, "AuthenticationRequired", "Authentication required.")
