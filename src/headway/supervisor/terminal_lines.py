"""Turn the bytes that a program prints into the lines that a terminal would show.

A carriage return, a backspace or a cursor movement rewrites a line; colours and other escape sequences are left out.
A line that is rewritten is a progress bar: the log gets its last state, and one state every `BAR_INTERVAL_S` while it
moves. Every other line is passed on as soon as it is complete.

Memory is bounded by `_MAX_ROWS` lines of `MAX_LINE_BYTES`; invalid UTF-8 passes through unchanged.
"""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

MAX_LINE_BYTES = 64 << 10  # longer lines are split: a reader must not need more memory than this
BAR_INTERVAL_S = 30.0  # between two states of the same bar in the log
_SETTLED_S = 1.0  # a line above the cursor that has not changed for so long is complete
_MAX_ROWS = 40  # lines that a program can still rewrite
_MAX_ROW_CHARS = 16 << 10  # of a line that is edited; a longer one is split
_COLUMNS = 1024  # a cursor movement stops at the right margin, as in a terminal
_RECENT_BYTES = 4096  # of plain output, kept in case the program moves the cursor up
_MAX_ESCAPE_CHARS = 4096
_BLANK = " \t"  # other control characters pass through unchanged, like invalid UTF-8

_COLOUR = re.compile(rb"\x1b\[[0-9;:]*m")
_TOKEN = re.compile(
    r"(?P<text>[^\n\r\b\x1b\x9b]+)"
    r"|\x1b\[(?P<args>[0-?]*)[ -/]*(?P<command>[@-~])"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # a window title
    r"|\x1b[PX^_][^\x1b]*\x1b\\"
    r"|\x1b[ -/]*[0-Z\\^-~]"
    r"|(?P<control>[\n\r\b\x1b\x9b])"
)
_INCOMPLETE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?|[PX^_][^\x1b]*\x1b?|[ -/]*)\Z")
_COUNTED = re.compile(r"[0-9] ?[%/]")  # 45% or 9/20: in every bar
_NO_LETTERS = re.compile(r"[^A-Za-z]+")


@dataclass(slots=True)
class _Row:
    """One line of the screen that the program can still rewrite."""

    text: str = ""
    before: str = ""  # its text before it was last rewritten
    logged: str | None = None  # its text when it was last written to the log
    since: float = 0.0  # when it was made, or last written to the log
    left: float = 0.0  # when the cursor last left it
    returned: bool = False  # it began with a carriage return, as bars do

    @property
    def is_bar(self) -> bool:
        if self.before and _is_similar(self.before, self.text):
            return True
        return self.returned and bool(_COUNTED.search(self.text))

    @property
    def is_dirty(self) -> bool:
        return self.text != self.logged and bool(self.text.strip(_BLANK))


class TerminalLines:
    """Line editor of one program's output. `feed` and `tick` return complete lines for the log."""

    def __init__(self, *, hold_back: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        """`hold_back` bytes of a line that must be split stay together with its second half."""
        self._hold_back, self._clock = max(1, hold_back), clock
        self._partial = b""  # the incomplete last line of plain output
        self._recent = b""
        self._rows: list[_Row] = []  # empty while the output is plain
        self._row = self._column = 0
        self._returned = False  # the cursor was moved since the last character
        self._escape = ""  # an escape sequence that is not complete yet
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._out: list[str] = []

    def feed(self, chunk: bytes) -> bytes:
        """Add a chunk of output; return the lines that are complete now."""
        if self._rows:
            return self._edit(chunk)
        data = self._partial + chunk if self._partial else chunk
        if b"\x1b" in data:
            data = _COLOUR.sub(b"", data)
        # Search for single bytes first: that is a hundred times faster than for two.
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        if b"\r" in data or b"\x1b" in data or b"\x08" in data or (b"\x9b" in data and b"\xc2\x9b" in data):
            self._partial = b""
            return self._edit(data)
        return self._split(data)

    def tick(self) -> bytes:
        """Return lines that are complete because time has passed, and bars that are due. Call about once a second."""
        if self._rows:
            self._log_settled()
            self._leave_editing()
        return self._take()

    def finish(self) -> bytes:
        """Return the rest, after the program has exited."""
        if self._rows:
            self._write(self._decoder.decode(b"", final=True))
            for row in self._rows:
                self._log(row)
            self._rows = []
            return self._take()
        rest, self._partial = self._partial, b""
        return rest + b"\n" if rest else b""

    def live(self) -> list[str]:
        """Return the bars on the screen, from top to bottom. An incomplete line that was not rewritten is none."""
        return [row.text for row in self._rows if row.is_dirty and row.is_bar]

    # Plain output

    def _split(self, data: bytes) -> bytes:
        cut = data.rfind(b"\n") + 1
        whole, self._partial = data[:cut], data[cut:]
        if len(self._partial) > MAX_LINE_BYTES:
            keep = len(self._partial) - self._hold_back
            whole, self._partial = whole + self._partial[:keep] + b"\n", self._partial[keep:]
        if len(whole) < _RECENT_BYTES:
            self._recent = (self._recent + whole)[-_RECENT_BYTES:]
        else:
            self._recent = whole[-_RECENT_BYTES:]
        return whole

    # Edited output

    def _edit(self, data: bytes) -> bytes:
        if not self._rows:
            self._enter_editing()
        self._write(self._escape + self._decoder.decode(_COLOUR.sub(b"", data) if b"\x1b" in data else data))
        self._log_settled()
        self._leave_editing()
        return self._take()

    def _enter_editing(self) -> None:
        now = self._clock()
        lines = self._recent.decode("utf-8", "replace").split("\n")[-_MAX_ROWS:-1]
        self._rows = [_Row(text=line[:_MAX_ROW_CHARS], logged=line[:_MAX_ROW_CHARS], since=now) for line in lines]
        self._rows.append(_Row(since=now))
        self._row, self._column, self._recent = len(self._rows) - 1, 0, b""

    def _leave_editing(self) -> None:
        """Return to plain output once no line above can change, which is much faster."""
        row = self._rows[self._row]
        pending = self._escape or self._decoder.getstate()[0] or any(each.is_dirty for each in self._rows[:-1])
        at_end = self._row == len(self._rows) - 1 and self._column == len(row.text)
        if pending or not at_end or row.before or row.returned or row.logged is not None:
            return
        lines = "".join(f"{each.text}\n" for each in self._rows[:-1])
        self._recent = _encode(lines)[-_RECENT_BYTES:]
        self._partial = _encode(row.text)
        self._rows = []

    def _write(self, text: str) -> None:
        self._escape = ""
        last = text.rfind("\x1b")
        if last >= 0 and (cut := _INCOMPLETE.search(text, max(0, text.rfind("\x1b", 0, last)))):
            text, self._escape = text[: cut.start()], text[cut.start() :][:_MAX_ESCAPE_CHARS]
            if len(self._escape) == _MAX_ESCAPE_CHARS:
                self._escape = ""
        for token in _TOKEN.finditer(text):
            kind = token.lastgroup
            if kind == "text":
                self._put(token["text"])
            elif kind == "command":
                self._command(token["command"], token["args"])
            elif kind == "control":
                self._control(token["control"])

    def _control(self, character: str) -> None:
        if character == "\n":
            self._newline()
        elif character == "\r":
            row = self._rows[self._row]
            row.returned = row.returned or not row.text.strip(_BLANK)
            self._move(column=0)
        elif character == "\b":
            self._move(column=self._column - 1)

    def _command(self, command: str, args: str) -> None:
        count = _first_number(args)
        times = max(1, count)
        if command in "AF":
            self._move(row=self._row - times, column=0 if command == "F" else self._column)
        elif command in "BE":
            self._move(row=min(self._row + times, len(self._rows) - 1), column=0 if command == "E" else self._column)
        elif command in "CDG":
            column = {"C": self._column + times, "D": self._column - times, "G": times - 1}[command]
            self._move(column=column)
        elif command in "Hf":
            self._move(row=min(times, len(self._rows)) - 1, column=0)
        elif command == "K":
            self._erase_line(count)
        elif command == "X":
            self._erase(self._rows[self._row], self._column, self._column + times)
        elif command == "J":
            self._erase_screen(count)

    def _move(self, *, column: int, row: int | None = None) -> None:
        if row is not None and row != self._row:
            self._rows[self._row].left = self._clock()
            self._row = max(0, row)
        self._column = min(max(0, column), max(_COLUMNS, len(self._rows[self._row].text)))
        self._returned = True

    def _put(self, text: str) -> None:
        row, start = self._rows[self._row], self._column
        if self._returned:
            self._returned = False
            if row.text[start:].strip(_BLANK):
                row.before = row.text
        if start > len(row.text):
            row.text += " " * (start - len(row.text))
        row.text = row.text[:start] + text + row.text[start + len(text) :]
        self._column += len(text)
        if len(row.text) > _MAX_ROW_CHARS:
            self._split_row(row)

    def _split_row(self, row: _Row) -> None:
        """Log the beginning of a line that is too long to edit, as one line."""
        keep = len(row.text) - self._hold_back
        part, rest = row.text[:keep], row.text[keep:]
        for start in range(0, len(part), _MAX_ROW_CHARS):
            self._log(_Row(text=part[start : start + _MAX_ROW_CHARS]))
        self._rows[self._row] = _Row(text=rest, since=self._clock())
        self._column = len(rest)

    def _erase_line(self, how: int) -> None:
        row = self._rows[self._row]
        start, end = (0 if how else self._column), (self._column + 1 if how == 1 else len(row.text))
        self._erase(row, start, end)

    def _erase(self, row: _Row, start: int, end: int) -> None:
        if row.text[start:end].strip(_BLANK):
            row.before = row.text
        tail = row.text[end:]
        row.text = row.text[:start] + " " * (min(end, len(row.text)) - start) + tail if tail else row.text[:start]

    def _erase_screen(self, how: int) -> None:
        if how == 0:
            self._erase_line(0)
        for row in self._rows[self._row + 1 if how == 0 else 0 :]:
            self._erase(row, 0, len(row.text))

    def _newline(self) -> None:
        row = self._rows[self._row]
        row.left = self._clock()
        if row.is_bar:
            self._log_if_due(row)
        elif row.text != row.logged and (row.text.strip(_BLANK) or not row.before):
            for above in self._rows[: self._row]:
                if above.is_dirty:
                    self._log(above)
            self._log(row, blank=True)
            row.before = ""
        self._row, self._column, self._returned = self._row + 1, 0, True
        if self._row == len(self._rows):
            self._rows.append(_Row(since=row.left))
            if len(self._rows) > _MAX_ROWS:
                self._log(self._rows.pop(0))
                self._row -= 1

    # The log

    def _log_settled(self) -> None:
        now = self._clock()
        for number, row in enumerate(self._rows):
            if not row.is_dirty:
                continue
            if number < self._row and row.logged is None and now - row.left >= _SETTLED_S:
                self._log(row)
            elif row.before or number < self._row:
                self._log_if_due(row)

    def _log_if_due(self, row: _Row) -> None:
        if row.is_dirty and self._clock() - row.since >= BAR_INTERVAL_S:
            self._log(row)

    def _log(self, row: _Row, *, blank: bool = False) -> None:
        if row.is_dirty or (blank and row.logged is None):
            self._out.append(row.text.rstrip(_BLANK))
        row.logged, row.since = row.text, self._clock()

    def _take(self) -> bytes:
        if not self._out:
            return b""
        lines, self._out = self._out, []
        return _encode("\n".join(lines) + "\n")


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _first_number(args: str) -> int:
    digits = args.partition(";")[0]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 6 else 0


def _is_similar(before: str, after: str) -> bool:
    """Return whether a line is another state of the same bar, rather than a message in its place."""
    one, other = _NO_LETTERS.sub("", before), _NO_LETTERS.sub("", after)
    return not one or not other or one[:4] == other[:4]
