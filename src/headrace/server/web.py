"""The chat page: static files of the package, read once. What they may do is written into their headers: run their own
script, use their own style, talk to this server, and nothing else.
"""

from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

_FOLDER = Path(__file__).resolve().parents[1] / "web"
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/web/chat.js": ("chat.js", "text/javascript; charset=utf-8"),
    "/web/style.css": ("style.css", "text/css; charset=utf-8"),
}
PAGE_PATHS = tuple(_FILES)
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


async def page(request: Request) -> Response:
    name, kind = _FILES[request.url.path]
    return Response(_read(name), headers=_HEADERS, media_type=kind)


@cache
def _read(name: str) -> bytes:
    return (_FOLDER / name).read_bytes()
