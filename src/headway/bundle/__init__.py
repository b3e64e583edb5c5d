"""Bundles: the format of an exported model, and atomic publishing."""

from __future__ import annotations

from headway.bundle.format import RECORD, WEIGHTS, Bundle, BundleParts, Record, read_record, to_json

__all__ = ["RECORD", "WEIGHTS", "Bundle", "BundleParts", "Record", "read_record", "to_json"]
