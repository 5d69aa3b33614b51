"""A client that costs little: it streams an answer over a socket of its own and counts its bytes, for benchmarks whose
clients share the processor with what is measured.
"""

from __future__ import annotations

import asyncio
import json


async def stream(port: int, path: str, body: dict[str, object]) -> int:
    """Read one stream to its end; returns the tokens that its usage counts."""
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    data = json.dumps(asked).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + data)
    last = b""
    while chunk := await reader.read(65536):
        last = (last + chunk)[-4096:]
    writer.close()
    usage = last[last.rindex(b'"completion_tokens":') + len(b'"completion_tokens":') :]
    return int(usage.split(b",")[0].split(b"}")[0])
