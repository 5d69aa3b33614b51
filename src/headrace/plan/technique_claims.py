"""What the source of plan/million_qps.py says of techniques (batching, quantization, speculation, chunks, offloading),
each beside what the latency model or plain arithmetic says.
"""

from collections.abc import Iterator

from headrace.core.model_spec import item_bytes
from headrace.models.published import published_model
from headrace.plan.claim import Claim
from headrace.plan.million_qps import Node
from headrace.policy.latency import StepWork

_KIB = 2**10


def technique_claims(node: Node) -> Iterator[Claim]:
    """In the order in which a reader meets them."""
    s, spec, gpu = node.source, node.spec, node.gpu
    waiting = sum(1 / i for i in range(1, 17))  # the longest of 16 exponential lengths, in means
    yield Claim(
        "Static batching keeps a GPU busy",
        s.static_busy,
        None,
        "share",
        "A batch is busy for its mean length over its longest. The source's own example, added up by its readers, is "
        "72 % busy and 28 % idle, as if the two had changed places; its lengths are not at hand here to be added "
        f"again. {100 * s.static_busy:.0f} % busy takes a long tail: 16 answers of exponential length are "
        f"{100 / waiting:.0f} %.",
        "unclear",
    )
    half = 1 - item_bytes("fp8") / item_bytes("fp16")
    yield Claim(
        f"FP8 or INT8 KV saves {100 * s.kv_saving[0]:.0f} to {100 * s.kv_saving[1]:.0f} %",
        s.kv_saving[1],
        half,
        "share",
        f"One byte in the place of two is {100 * half:.0f} %, a little less with scales. Three quarters would take 4 "
        f"bits ({100 * (1 - item_bytes('int4') / item_bytes('fp16')):.0f} % with theirs).",
    )
    draft, rate = 4, 0.7
    accepted = sum(rate**i for i in range(1, draft + 1))
    yield Claim(
        f"Tokens of a verified step ({draft} drafted, {100 * rate:.0f} % accepted each)",
        accepted,
        accepted + 1,
        "tokens",
        "The step that checks the drafts also samples the token after the last one accepted, so it yields those plus "
        "one, and one where none was right.",
    )
    low, high = (_speculation(node, n, draft, accepted + 1) for n in (1, s.at_once[1]))
    yield Claim(
        "Speculation raises throughput",
        low,
        high,
        "x",
        f"The same step on {node.size} {gpu.name.upper()} with and without {draft} drafts that cost nothing: {low:.2f} "
        f"times the tokens a second for one request, {high:.2f} times with {s.at_once[1]} at once, where the added "
        "rows are arithmetic that the GPU has no room for. It buys latency at low load, not throughput at high load.",
    )
    llama = published_model("llama-3.1-405b")
    yield Claim(
        "Layers of Llama-3.1-405B",
        None,
        len(llama.layers),
        "layers",
        f"So its KV is {llama.kv_bytes(1, 'fp16') / _KIB:,.0f} KiB a token, 2 x {len(llama.layers)} x "
        f"{llama.layers[0].attention.kv_heads} x 128 x 2 bytes; a pipeline of 4 or 8 has uneven stages.",
        "unclear",
    )
    yield _stall(node)
    cold, request = 10e9, spec.kv_bytes(node.tokens, "fp16", node.size)
    yield Claim(
        "cpu_offload_gb moves KV to the host",
        1e3 * request / gpu.pcie,
        1e3 * cold / gpu.pcie,
        "ms",
        f"It offloads weights, which every step then reads over PCIe: {cold / 1e9:.0f} GB of them are "
        f"{1e3 * cold / gpu.pcie:.0f} ms a token. A request's KV is {1e3 * request / gpu.pcie:.1f} ms a GPU, once when "
        "it is put away and once when it comes back: kv_offloading_size here.",
    )


def _stall(node: Node) -> Claim:
    prior, n, prompt, chunk = node.prior(), 16, 4000, 256
    context = n * (node.source.prompt + node.source.answer // 2)
    plain = prior(StepWork(n, n, context, 0.0, n, n))
    whole = prior(StepWork(n + prompt, n + 1, context, prompt * prompt / 2, n + 1, n + 1))
    part = prior(StepWork(n + chunk, n + 1, context, chunk * (prompt - chunk / 2), n + 1, n + 1))
    return Claim(
        "A long prompt among streams shows in TTFT",
        1e3 * plain,
        1e3 * whole,
        "ms between tokens",
        f"{n} streams have a token every {1e3 * plain:.0f} ms; a prompt of {prompt:,} tokens in one step makes that "
        f"one {1e3 * whole:.0f} ms: it shows in their ITL, not in their TTFT, which is past. In chunks of {chunk} it "
        f"is {1e3 * part:.0f} ms at most, and the prompt's own TTFT grows.",
    )


def _speculation(node: Node, clients: int, draft: int, tokens: float) -> float:
    """Tokens a second of decode steps with drafts over those without."""
    prior, context = node.prior(), clients * (node.source.prompt + node.source.answer // 2)
    plain = prior(StepWork(clients, clients, context, 0.0, clients, clients))
    rows = clients * (draft + 1)
    return tokens * plain / prior(StepWork(rows, clients, context, 0.0, rows, rows))
