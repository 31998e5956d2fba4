"""The text of one request as it grows, cut at a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from target_engine.tokenizer import IncrementalDetokenizer, Tokenizer


class TextStream:
    """Gives text out only when it can no longer turn out to be part of a stop string. After a stop string nothing more
    comes.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._stop = tuple(stop)
        self._held = ""
        self.stopped = False

    def push(self, token_id: int) -> str:
        """Take one token; returns the new text that is certain. Sets `stopped` when a stop string is complete."""
        return self._take(self._detokenizer.push(token_id))

    def finish(self) -> str:
        """The rest, once no more tokens come."""
        text = self._take(self._detokenizer.finish())
        held, self._held = self._held, ""
        return text if self.stopped else text + held

    def _take(self, text: str) -> str:
        if self.stopped:
            return ""
        self._held += text
        found = [at for at in map(self._held.find, self._stop) if at >= 0]
        if found:
            self.stopped = True
            out, self._held = self._held[: min(found)], ""
            return out
        keep = max((overlap(self._held, stop) for stop in self._stop), default=0)
        cut = len(self._held) - keep
        out, self._held = self._held[:cut], self._held[cut:]
        return out


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
