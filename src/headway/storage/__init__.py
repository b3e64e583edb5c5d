"""Stores for run folders behind five methods: a local folder, gs://, s3://, az:// or memory://."""

from headway.storage.base import ABSENT, Entry, Store
from headway.storage.open import (
    join,
    local_path,
    mended_url,
    open_store,
    require_conditional_put,
    require_url,
    same_place,
)
from headway.storage.transfer import fetch_file, send_file, subfolders

__all__ = [
    "ABSENT",
    "Entry",
    "Store",
    "fetch_file",
    "join",
    "local_path",
    "mended_url",
    "open_store",
    "require_conditional_put",
    "require_url",
    "same_place",
    "send_file",
    "subfolders",
]
