"""Run a module of Headway with the interpreter that Headway brought into an image: `image_entry.py MODULE [WORD ...]`.

Run as a file with `python -I -S`, so that nothing of the image is imported: neither its PYTHONPATH nor its packages.
What is put into the environment for this process is named in HEADWAY_ADDED; the program does not inherit it.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import MutableMapping
from pathlib import Path

CERTIFICATES, ADDED = "SSL_CERT_FILE", "HEADWAY_ADDED"
_SYSTEM_CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def main() -> None:
    sys.path[:0] = [str(Path(__file__).parents[2]), f"{sys.prefix}/packages"]
    use_certificates(os.environ, f"{sys.prefix}/etc/ca-certificates.crt")
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def use_certificates(env: MutableMapping[str, str], brought: str) -> None:
    """Trust the image's certificates, which may include a company's own, or ours if it has none."""
    found = next((path for path in (*_SYSTEM_CERTIFICATES, brought) if os.path.isfile(path)), None)
    if found is not None and CERTIFICATES not in env:
        env[CERTIFICATES] = found
        env[ADDED] = CERTIFICATES


if __name__ == "__main__":
    main()
