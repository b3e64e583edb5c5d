"""Read JSON lines of text pairs: {"source": "good morning", "target": "guten Morgen"}."""

from __future__ import annotations

import json

from headway.data.readers.base import Bad, Row, split_name


class JsonLines:
    task = "translation"  # what its rows are for: captions, classes, grades or translation
    name = "JSON lines"

    def __init__(self, tree):
        self._tree = tree

    @classmethod
    def fits(cls, tree):
        return any(key.endswith(".jsonl") for key in tree.summary.documents)

    def read_rows(self):
        for key in self._tree.summary.documents:
            if not key.endswith(".jsonl"):
                continue
            for number, line in self._tree.lines(key):
                if line.strip():
                    yield self._row(key, number, line)

    def _row(self, key, number, line):
        where = f"{key.removesuffix('.jsonl')}/{number}"
        try:
            texts = {name: json.loads(line)[name] for name in ("source", "target")}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            return Bad(row=where, reason="not a pair of texts", detail=f"{type(error).__name__}: {error}")
        if not all(isinstance(text, str) and text.strip() for text in texts.values()):
            return Bad(row=where, reason="not a pair of texts", detail="both must be texts that are not empty")
        return Row(id=where, split=split_name(key), texts=texts)
