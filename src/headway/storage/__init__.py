"""Stores for run folders: a local folder, gs://, s3://, az:// or memory://, behind five verbs."""

from headway.storage.base import ABSENT, Entry, Store
from headway.storage.open import join, local_path, open_store

__all__ = ["ABSENT", "Entry", "Store", "join", "local_path", "open_store"]
