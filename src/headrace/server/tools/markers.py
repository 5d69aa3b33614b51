"""Finding markers in text that arrives in pieces: what may still become one is held back, and so is white space that
may turn out to stand beside one, where it is no content.
"""


class MarkerSearch:
    """Looks for the first of several markers. space: the white space that stood before the last one found."""

    def __init__(self, *markers: str) -> None:
        self._markers = markers
        self._held = ""
        self._after_marker = False
        self.space = ""

    def skip_space(self) -> None:
        """White space that comes next is no content."""
        self._after_marker = True

    def feed(self, text: str) -> tuple[str, str | None, str]:
        """(text before it, the marker, text after it); without a marker, what is certain to be none."""
        text, self._held = self._held + text, ""
        if self._after_marker:
            text = text.lstrip()
            self._after_marker = not text
        found = min(((at, marker) for marker in self._markers if (at := text.find(marker)) >= 0), default=None)
        if found is not None:
            at, marker = found
            before = text[:at].rstrip()
            self.space = text[len(before) : at]
            return before, marker, text[at + len(marker) :]
        cut = len(text) - max(_begun(text, marker) for marker in self._markers)
        cut = len(text[:cut].rstrip())
        self._held = text[cut:]
        return text[:cut], None, ""

    def finish(self) -> str:
        """What was held back, when nothing more comes."""
        text, self._held = self._held, ""
        return text


def _begun(text: str, marker: str) -> int:
    """Length of the longest end of text that begins the marker."""
    return next((n for n in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:n])), 0)
