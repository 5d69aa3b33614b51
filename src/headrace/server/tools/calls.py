"""CallWriter: one call's object after another becomes parts, numbered and with ids; what fails to be a call is given
back as the text that it was.
"""

from headrace.server.tools.json_scan import CallScan
from headrace.server.tools.parts import NewId, Parts


class CallWriter:
    """count: calls begun so far."""

    def __init__(self, new_id: NewId) -> None:
        self._new_id = new_id
        self._scan: CallScan | None = None
        self.count = 0

    def begin(self) -> None:
        """An object follows."""
        self._scan = CallScan()

    @property
    def busy(self) -> bool:
        """Whether an object has begun and not ended."""
        return self._scan is not None

    def feed(self, text: str, parts: Parts) -> tuple[str, str]:
        """Read an object from the text into parts. Returns (what was no call: its text so far, what is left)."""
        scan = self._scan
        assert scan is not None
        for at, character in enumerate(text):
            known = scan.name is not None
            arguments = scan.feed(character)
            if scan.name is not None and not known:
                self.named(scan.name, parts)
            parts.argue(self.count - 1, arguments)
            if scan.done or scan.failed:
                self._scan = None
                # A call that goes wrong after its name stays a call, with what it brought.
                failed = scan.raw if scan.failed and scan.name is None else ""
                return failed, text[at + 1 :]
        return "", ""

    def finish(self) -> str | None:
        """The text of an object that ends too early to be a call; None if there is none."""
        scan, self._scan = self._scan, None
        return scan.raw if scan is not None and scan.name is None else None

    def named(self, name: str, parts: Parts) -> None:
        """A call of this tool begins."""
        parts.begin(self.count, self._new_id(), name)
        self.count += 1
