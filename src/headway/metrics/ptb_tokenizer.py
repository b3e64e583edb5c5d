"""Caption tokenizer equivalent to coco-caption's, which uses Stanford's PTB tokenizer 3.4.1, without Java.

The rules were inferred from that tool's output on some millions of strings (its source was not used), so they include
its oddities: `ground.A` is one token, `M&Ms` is two, `5pm` is one and `5:00pm` two. All repetitions that could run over
the rest of a text from many starting points are bounded, so that no input takes quadratic time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

Rewrite = Callable[[str], str]
NO_BREAK = "\u00a0"  # represents a blank inside a token


def _any(words: str | Iterable[str]) -> str:
    """Return a pattern that matches any of the words, longest first."""
    each = words.split() if isinstance(words, str) else words
    return "|".join(sorted(each, key=len, reverse=True))


# Abbreviations that keep their period everywhere.
_ABBREVIATIONS = """
adj adm adv al ala alex apr ariz assn assoc asst atty attys aug ave bhd bldg blvd brig bros calif capt cf cie cmdr co
col colo comdr conn corp cos cpl ct dak dec dept det dr drs elec ens esq est etc ext feb fla fri ft ga gen gov govs hon
inc ind insp intl invt jan jos jr jul jun kan kans ky lieut lt ltd maj mar md mfg mich minn mlle mme mo mon mont mr mrs
ms msgr mt mtg natl neb nev nov oct okla penn pfc ph plc ppte pptes ppty pptys pres prof profs pte ptes pty ptys pvt rd
rep reps rev rt sen sens sep sept seq sfc sgt spc sq sr st ste supt supts sys tel tenn thu thurs treas tue tues univ va
vs vt wed wis wisc wm wyo
"""
_CAPITALISED = "Ark Az Del Ill La Mass Miss Ore Pa Tex Wash"  # abbreviations only if capitalised
_BEFORE_A_NUMBER = _any("art ca fig no nos op pp")

# After a single letter and its period, one of these words starts a new sentence.
_SENTENCE_STARTS = """
A About According After An As At But Earlier He Her Here However If In It Last Many More Now Once One Other Our She
Since So Some Such That The Their Then There These They This We What When While Yet You
"""
_START = _any(word[0] + (f"(?i:{word[1:]})" if word[1:] else "") for word in _SENTENCE_STARTS.split())

# Alphabetic letters and the accents that follow them; not ², ½, Ⅳ or ①.
_MARKS = (
    r"\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u064b-\u065e\u0901-\u0903\u093c-\u094d\u0e31\u0e34-\u0e3a\u0e47-\u0e4e"
)
_LETTER = rf"(?:[^\W\d_²³¹¼-¾\u2070-\u2089\u2150-\u218b\u2460-\u24ff\u2776-\u2793\U00010000-\U0010ffff]|[{_MARKS}])"
_ALNUM = rf"(?:{_LETTER}|\d)"
_APOSTROPHE = "['’\x92]"
_CLITIC = rf"{_APOSTROPHE}(?i:s|d|m|ll|re|ve)(?!{_LETTER})"

_ABBREVIATION = rf"(?:(?i:{_any(_ABBREVIATIONS)})|{_any(_CAPITALISED)}|{_any(_CAPITALISED.upper())})\."
_ACRONYM = r"(?:[A-Za-z](?:\.[A-Za-z])+|(?i:ph\.d))\."
_APOSTROPHE_WORD = (
    rf"(?:[DdLlNnOo]{_APOSTROPHE}{_LETTER}{{2,}}"
    rf"|[A-XZ]{_APOSTROPHE}{_LETTER}{{2,}}"
    rf"|{_LETTER}+[aeiouyAEIOUY]{_APOSTROPHE}[aeiouA-Z]{_LETTER}*"
    rf"|(?i:c{_APOSTROPHE}(?:est|mon)|e{_APOSTROPHE}er|ev{_APOSTROPHE}ry|nat{_APOSTROPHE}l|s{_APOSTROPHE}mores))"
)
_WORD = rf"(?:(?!{_ALNUM}+{_CLITIC}){_APOSTROPHE_WORD}|{_ALNUM}+)"
_HYPHENATED = rf"{_WORD}(?:[-_‐‑]{_WORD})*"
_DOTTED = rf"{_LETTER}{_ALNUM}*(?:[.!?]{_LETTER}{_ALNUM}*)+"
_NUMBER = r"(?:\d+(?:[.:,][-+]?\d+)*|(?:[.:,]\d+)+)"

_IN_URL = r"[^\s\"<>|()]"
_URL_END = r"[^\s\"<>|().!?,;:-]"
_IN_HOST = r"[^\s\"`'<>|.!?,()\-$*#\[\]]"
_URL_PATH = rf"(?:/{_IN_URL}{{1,500}}{_URL_END})?"

_SYMBOLS = (
    {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
    | dict.fromkeys('"\x93\x94“”«»', "''")
    | dict.fromkeys("\x91\x92‘’‛‹›", "'")
    | dict.fromkeys("\x96\x97–—―", "--")
    | dict.fromkeys("\x80¤₠€", "$")
    | {"£": "#", "¢": "cents", "…": "..."}
    | {"¼": "1/4", "½": "1/2", "¾": "3/4", "⅓": "1/3", "⅔": "2/3"}
)
_CURLY = {"‘": "`", "’": "'", "“": "``", "”": "''"}

# Characters that are tokens by themselves. Any other that no rule knows, such as an emoji, is dropped.
_SIGN = (
    r"[!-/:-@\[-`{-~¡¥-©¬®-´¶-¹¿×÷\u2016-\u2023\u2030-\u2044\u2070-\u208e\u2100-\u214f\u2155-\u215e\u2190-\u2bff"
    rf"\u3001\u3002\u3012\u30fb\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65\uffe0-\uffe6{re.escape(''.join(_SYMBOLS))}]"
)


def _unchanged(token: str) -> str:
    return token


def _becomes(token: str) -> Rewrite:
    return lambda _: token


def _bracketed(token: str) -> str:
    return token.replace("(", "-lrb-").replace(")", "-rrb-")


def _unbroken(token: str) -> str:
    return token.replace(" ", NO_BREAK)


# At each position the longest match is the token; on ties the first rule.
RULES: list[tuple[re.Pattern[str], Rewrite]] = [
    (re.compile(pattern), rewrite)
    for pattern, rewrite in [
        (_HYPHENATED, _unchanged),
        (_DOTTED, _unchanged),
        (rf"{_HYPHENATED}(?:/{_HYPHENATED}){{1,2}}", _unchanged),
        (rf"(?:{_DOTTED}|{_ABBREVIATION}|{_ACRONYM})(?:-{_WORD})+", _unchanged),
        (rf"{_ALNUM}+(?:[.,]{_ALNUM}+){{1,16}}(?:-{_ALNUM}+)+", _unchanged),
        (rf"{_HYPHENATED}\.(?=[,;:])", _unchanged),
        (_ABBREVIATION, _unchanged),
        (rf"{_ACRONYM}(?:-{_ACRONYM})?", _unchanged),
        (rf"[A-Za-z]\.(?!\s*$|\s+(?:{_START})\s)", _unchanged),
        (rf"(?i:{_BEFORE_A_NUMBER})\.(?=\s*\d)", _unchanged),
        (rf"[-+]?{_NUMBER}", _unchanged),
        (r"\d+ \d+/\d+", _unbroken),
        (r"\(\d{3}\) ?\d{3}-\d{4}", lambda token: _bracketed(_unbroken(token))),
        (r"[A-Z]+(?:(?:[+&]|&amp;)[A-Z]+)+", lambda token: token.replace("&amp;", "&")),
        (r"[A-Z]+\$|[Cc](?:\+\+|#)", _unchanged),
        (rf"#{_LETTER}+|@[A-Za-z_]\w*", _unchanged),
        (_CLITIC, lambda token: "'" + token[1:]),
        (rf"{_APOSTROPHE}(?i:em|(?:n|til|cause)(?!{_ALNUM}))", _unchanged),
        (rf"{_APOSTROPHE}[nN]{_APOSTROPHE}", _unchanged),
        (rf"(?i:[djly](?!{_CLITIC})|dunkin|ol|somethin){_APOSTROPHE}", _unchanged),
        (rf"{_APOSTROPHE}\d\d(?:s(?!{_ALNUM})|(?=\s|$))", _unchanged),
        (r"''|``", _becomes("''")),
        (r"[‘’“”]{2,}", lambda token: "".join(_CURLY[quote] for quote in token)),
        (r"&amp;", _becomes("&")),
        (r"&lt;", _becomes("<")),
        (r"&gt;", _becomes(">")),
        (r"&(?:quot|apos|nbsp);", _becomes("'")),
        (r"&#\d+;", _unchanged),
        (rf"[<>]?[:;=][-o'*]?[()\[\]{{@|\\DPdp](?!{_ALNUM})|\^_\^|-_-|>_>", _bracketed),
        (r"[!?]{2,}|\*{2,}|#{2,}|@{2,}|_+|<<|>>|\\\*", _unchanged),
        (r"</?[A-Za-z!][^<>]*>", _unbroken),
        (rf"(?:https?|ftp)://{_IN_URL}{{1,500}}{_URL_END}", _unchanged),
        (rf"(?i:www)\.(?:[^\s\"<>|().!?,]+\.){{1,9}}[a-zA-Z]{{2,4}}{_URL_PATH}", _unchanged),
        (rf"{_IN_HOST}{{1,99}}(?:\.{_IN_HOST}{{1,99}}){{0,9}}\.(?i:com|net|org|edu){_URL_PATH}", _unchanged),
        (r"[A-Za-z0-9][^\s\"<>|()]{0,99}@(?:[^\s\"<>|().]{1,99}\.){0,9}[^\s\"<>|().]{1,99}", _unchanged),
        (r"-{2,}", _becomes("--")),
        (r"\.{3,}", _becomes("...")),
        (_SIGN, lambda token: _SYMBOLS.get(token, token)),
    ]
]

# Words that split into two tokens: don't → do n't, cannot → can not, 'tis → 't is.
IN_TWO = re.compile(
    rf"({_LETTER}*?)(n(?:{_APOSTROPHE}|`)t)(?!{_LETTER})"
    rf"|(?:(can)(not)|(gon|wan)(na)|(got)(ta)|(gim|lem)(me)|({_APOSTROPHE}t)(is|was))(?!{_ALNUM}|{_CLITIC})",
    re.IGNORECASE,
)

# Pieces whose tokens depend on their neighbours, beyond a blank.
NEEDS_CONTEXT = re.compile(
    rf"(?:^|.*\W)(?:[A-Za-z]|(?i:{_BEFORE_A_NUMBER}))\.$|.*\d/\d|.*\(\d{{3}}\)$|[^<]*<[A-Za-z!/][^>]*$", re.DOTALL
)


# Tokenizing


# Marks that coco-caption drops. Brackets are lower-cased before it looks, so they stay: -lrb-, -rrb-.
_DROPPED = frozenset(["''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"])

_SOFT_HYPHEN = "\u00ad"
_ROOM = 200_000  # cached pieces; more than any set of captions has, and some 30 MB


def tokenize(caption: str) -> list[str]:
    """Return the tokens of one caption. Any line break counts as a blank, so text after it is not lost."""
    tokens: list[str] = []
    for piece in caption.split():
        known = _PIECES[piece]
        if known is None:
            return _scan(caption)
        tokens += known
    return tokens


def tokenize_all(captions: Iterable[str]) -> list[str]:
    """Return the captions as tokens joined by single spaces."""
    return [" ".join(tokenize(caption)) for caption in captions]


class _Pieces(dict[str, "tuple[str, ...] | None"]):
    """Cache of the tokens of each piece without blanks; None if they depend on its neighbours.

    A hit costs one lookup.
    """

    def __missing__(self, piece: str) -> tuple[str, ...] | None:
        if len(self) >= _ROOM:
            self.clear()
        known = self[piece] = _tokens_of(piece)
        return known


_PIECES = _Pieces()


def _tokens_of(piece: str) -> tuple[str, ...] | None:
    if piece.isascii() and piece.isalpha() and not IN_TWO.match(piece):
        return (piece.lower(),)  # the common case, with the same result as the rules
    return None if NEEDS_CONTEXT.match(piece) else tuple(_scan(piece))


def _scan(text: str) -> list[str]:
    """Tokenise a text by the rules, taking the longest match at each position."""
    text = " ".join(text.replace(_SOFT_HYPHEN, "").split())
    tokens: list[str] = []
    place = 0
    while place < len(text):
        end, rewrite = place, None
        for pattern, change in RULES:
            match = pattern.match(text, place)
            if match and match.end() > end:
                end, rewrite = match.end(), change
        two = IN_TWO.match(text, place)
        if two and two.end() >= end:
            tokens += [part.replace("’", "'").lower() for part in two.groups() if part]
            end = two.end()
        elif rewrite:
            tokens.append(rewrite(text[place:end]).lower())
        place = max(end, place + 1)  # skip a blank, or a character that is not a token
    return [token for token in tokens if token not in _DROPPED]
