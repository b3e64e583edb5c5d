"""An inspection as one HTML file: no scripts, nothing fetched, pictures inside. Everything from the data is escaped."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.data.inspect import Inspection, SplitFacts

_BARS = 40  # at most in one chart

_STYLE = """
:root { color-scheme: light dark; --bar: #4a7dbd; --edge: #8884; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { margin-top: 2.2rem; border-bottom: 1px solid var(--edge); }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem .2rem 0; text-align: left; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.sheet { display: grid; grid-template-columns: repeat(auto-fill, minmax(112px, 1fr)); gap: .6rem; }
figure { margin: 0; font-size: .75rem; overflow-wrap: anywhere; } figure img { max-width: 100%; display: block; }
.bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: .15rem .7rem; max-width: 46rem; }
.bars div.b { background: var(--bar); height: .9rem; align-self: center; border-radius: 2px; min-width: 1px; }
small { opacity: .7; }
"""


def page(found: Inspection) -> str:
    manifest = found.manifest
    parts = [
        f"<h1>{escape(manifest.name)}</h1>",
        f"<p>{escape(manifest.task)} · {escape(found.url)}<br><small>fingerprint {manifest.fingerprint}</small></p>",
        _splits(found),
        _left_out(found),
        _vocabulary(found),
    ]
    parts += [_split(name, facts) for name, facts in found.splits.items()]
    body = "\n".join(part for part in parts if part)
    head = f'<meta charset="utf-8"><title>{escape(manifest.name)}</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n'


def _splits(found: Inspection) -> str:
    rows = [
        f"<tr><td>{escape(name)}</td>"
        + "".join(map(_n, (facts.rows, facts.captions or "", facts.shards, _size(facts.bytes))))
        + "</tr>"
        for name, facts in found.splits.items()
    ]
    head = "".join(f"<th class=n>{title}</th>" for title in ("rows", "captions", "shards", "size"))
    return f"<table><tr><th>split</th>{head}</tr>{''.join(rows)}</table>"


def _left_out(found: Inspection) -> str:
    said = "<p>Nothing.</p>"
    if found.manifest.dropped:
        said = _bars(found.manifest.dropped)
    groups = ", ".join(f"{count} {kind}" for kind, count in found.duplicates.items())
    twins = f"<p>Groups of duplicate pictures: {escape(groups)}.</p>" if groups else ""
    return f"<h2>Left out</h2>{said}{twins}<p><small>Row by row: headway data inspect --dropped</small></p>"


def _vocabulary(found: Inspection) -> str:
    if not found.vocabulary:
        return ""
    words = f"{found.vocabulary:,} words"
    if found.common:
        words += f" in the training captions; {found.unknown:.2%} of what is said uses words seen fewer than five times"
    return f"<h2>Vocabulary</h2><p>{words}.</p>" + (_bars(dict(found.common)) if found.common else "")


def _split(name: str, facts: SplitFacts) -> str:
    note = " <small>(of the first shard)</small>" if facts.sampled else ""
    parts = [f"<h2>{escape(name)}{note}</h2>"]
    if facts.sheet:
        figures = "".join(
            f'<figure><img alt="" src="data:image/jpeg;base64,{base64.b64encode(shown.jpeg).decode()}">'
            f"<figcaption title='{escape(shown.id)}'>{escape(shown.said[:120])}</figcaption></figure>"
            for shown in facts.sheet
        )
        parts.append(f'<div class="sheet">{figures}</div>')
    if facts.classes:
        parts.append("<h3>Classes</h3>" + _bars(facts.classes))
    if facts.lengths:
        parts.append("<h3>Words in a text</h3>" + _bars({str(length): n for length, n in facts.lengths.items()}))
    if facts.sizes:
        parts.append("<h3>Megapixels of the originals</h3>" + _bars(facts.sizes))
    return "".join(parts)


def _bars(counts: Mapping[str, int]) -> str:
    shown = dict(list(counts.items())[:_BARS])
    most = max(shown.values(), default=1) or 1
    rows = "".join(
        f"<span>{escape(name)}</span>"
        f'<div class="b" style="width:{100 * count / most:.1f}%"></div>'
        f"<span>{count:,}</span>"
        for name, count in shown.items()
    )
    more = f"<p><small>and {len(counts) - _BARS} more</small></p>" if len(counts) > _BARS else ""
    return f'<div class="bars">{rows}</div>{more}'


def _n(value: object) -> str:
    return f"<td class=n>{value:,}</td>" if isinstance(value, int) else f"<td class=n>{value}</td>"


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
