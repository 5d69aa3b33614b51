"""A fleet for 1.4 million requests a second, as it was published: Llama-3-70B on nodes of eight A100. SOURCE holds the
published figures; what stands beside them is computed from the model's and the hardware's data and the latency model.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from headrace.core.errors import ConfigError
from headrace.core.hardware import Hardware, known_hardware
from headrace.core.model_spec import ModelSpec, item_bytes
from headrace.models.published import published_model
from headrace.plan.claim import Claim
from headrace.plan.closed_loop import VLLM, Load, Terms, clients_held, latency
from headrace.policy.roofline import Roofline, Serving

_GIB = 2**30
_KIB = 2**10


@dataclass(frozen=True, slots=True)
class Source:
    """What was published: a service of `rate` requests a second, each of `prompt` and `answer` tokens in so many
    seconds, in nodes of eight A100. kv_heads: heads whose keys and values it counts; sized: tokens of a request that it
    makes room for; weights: bytes, in all and per_gpu; transfer: bytes of KV moved in a second."""

    model: str = "llama-3-70b"
    gpu: str = "a100"
    rate: float = 1.4e6
    prompt: int = 200
    answer: int = 200
    kv_heads: int = 64
    sized: int = 1000
    weights: float = 140e9
    per_gpu: tuple[float, float] = (35e9, 17.5e9)
    at_once: tuple[int, int, int] = (147, 150, 200)
    seconds: float = 3.0
    nodes: int = 28_000
    gpus: int = 220_000
    static_busy: float = 0.30
    transfer: float = 3.4e15
    kv_saving: tuple[float, float] = (0.50, 0.75)


SOURCE = Source()


@dataclass(frozen=True, slots=True)
class Node:
    """The source's node and load, as our own data describe them."""

    source: Source
    spec: ModelSpec
    gpu: Hardware
    load: Load
    """Of the requests that it says a node runs at once."""

    @classmethod
    def of(cls, source: Source) -> Node:
        load = Load(source.at_once[1], source.prompt, source.answer)
        return cls(source, published_model(source.model), known_hardware(source.gpu), load)

    def prior(self) -> Roofline:
        return Roofline(self.spec, Serving(self.gpu, self.size))

    @property
    def size(self) -> int:
        return self.gpu.per_node

    @property
    def tokens(self) -> int:
        """Of one request when it ends."""
        return self.source.prompt + self.source.answer

    @property
    def as_counted(self) -> float:
        """Bytes of a token's keys and values with the source's heads."""
        a = self.spec.layers[0].attention
        return len(self.spec.layers) * self.source.kv_heads * (a.head_dim + a.v_head_dim) * item_bytes("fp16")

    @property
    def per_token(self) -> int:
        return self.spec.kv_bytes(1, "fp16")


def fleet_claims(node: Node) -> Iterator[Claim]:
    """The argument that leads to the number of GPUs, in its order."""
    yield from _demand(node)
    yield from _memory(node)
    yield from _speed(node)
    yield from _fleet(node)
    yield from _network(node)


def _demand(node: Node) -> Iterator[Claim]:
    s = node.source
    yield Claim(
        "1.4 million a second: new requests, or users at once?",
        s.rate,
        s.rate * s.seconds,
        "requests at once",
        f"At {s.seconds:g} s each, {s.rate:,.0f} new requests a second are {s.rate * s.seconds:,.0f} at once (Little's "
        f"law); if it is the users at once, they are {s.rate / s.seconds:,.0f} a second and a third of the fleet does. "
        "The node count takes it as new requests, and so do the lines below.",
        "unclear",
    )


def _memory(node: Node) -> Iterator[Claim]:
    s, spec, gpu = node.source, node.spec, node.gpu
    heads = spec.layers[0].attention.kv_heads
    yield Claim(
        f"KV cache of {s.sized:,} tokens",
        node.as_counted * s.sized / _GIB,
        node.per_token * s.sized / _GIB,
        "GiB",
        f"2 x {len(spec.layers)} layers x {s.kv_heads} heads x 128 x 2 bytes is {node.as_counted / _KIB:,.0f} KiB a "
        f"token: multiplied rightly, but {s.kv_heads} are the heads of the queries. Groups of them share {heads} heads "
        f"of keys and values, so a token keeps {node.per_token / _KIB:,.0f} KiB.",
    )
    weights = spec.weight_bytes("fp16")
    yield Claim(
        "Weights in 16 bits",
        s.weights / 1e9,
        weights / 1e9,
        "GB",
        f"{spec.num_parameters:,} parameters of 2 bytes: right but for rounding.",
        "right",
    )
    high, low = s.per_gpu
    yield Claim(
        f"Weights on one GPU: {high / 1e9:g} GB in one place, {low / 1e9:g} GB in another",
        high / 1e9,
        weights / node.size / 1e9,
        "GB",
        f"{high / 1e9:g} GB is a model over {s.weights / high:.0f} GPUs, {low / 1e9:g} GB over {s.weights / low:.0f}. "
        f"Its nodes run one model over {node.size}, so {low / 1e9:g} is the one that holds; {high / 1e9:g} would be "
        "two copies in a node.",
    )
    yield Claim(
        "Room for each request",
        node.as_counted * s.sized / 1e6,
        node.per_token * node.tokens / 1e6,
        "MB",
        f"Sized for {s.sized:,} tokens, loaded with {s.prompt} + {s.answer} = {node.tokens}: a factor of "
        f"{s.sized / node.tokens:g}, beside the {s.kv_heads / heads:g} of the heads. With pages a request takes what "
        "it has.",
    )
    held, _ = clients_held(spec, Serving(gpu, node.size), node.load)
    each = node.as_counted * s.sized / _GIB * 1e9  # the source takes its GiB for GB
    counts = [int(node.size * (gpu.memory_bytes / _GIB * 1e9 - share) / each) for share in s.per_gpu]
    yield Claim(
        f"Requests at once on a node: {', '.join(map(str, s.at_once[:2]))} or about {s.at_once[2]}",
        s.at_once[1],
        held,
        "requests",
        f"{counts[0]} is {node.size} x (80 - {high / 1e9:g}) / {each / 1e9:.2f} and {counts[1]} is {node.size} x (80 - "
        f"{low / 1e9:g}) / {each / 1e9:.2f}: the weights' two sizes again. With {heads} KV heads and {node.tokens} "
        f"tokens, a tenth of memory left free and 3 GB a GPU for activations, the cache holds {held:,}.",
    )


def _speed(node: Node) -> Iterator[Claim]:
    s, spec, gpu = node.source, node.spec, node.gpu
    n, weights = s.at_once[0], spec.weight_bytes("fp16")
    theirs = (weights + n * s.sized * node.as_counted) / node.size / gpu.bandwidth
    mean = s.prompt + s.answer // 2
    ours = (weights + n * mean * node.per_token) / node.size / gpu.bandwidth
    yield Claim(
        f"{s.answer} tokens in {s.seconds:g} s: time of a step",
        1e3 * s.seconds / s.answer,
        1e3 * theirs,
        "ms",
        f"By its own figures a GPU reads {weights / node.size / 1e9:.1f} GB of weights and "
        f"{n * s.sized * node.as_counted / node.size / 1e9:.1f} GB of cache for each token: {1e3 * theirs:.0f} ms at "
        f"every byte of {gpu.bandwidth / 1e12:.2f} TB/s. With the KV heads and tokens that there are it would be "
        f"{1e3 * ours:.1f} ms, before any arithmetic, all-reduce or prompt.",
    )
    alone, busy = (_seconds(node.prior(), replace(node.load, clients=clients)) for clients in (1, n))
    yield Claim(
        f"A request takes {s.seconds:g} s",
        s.seconds,
        busy,
        "s",
        f"By the latency model (measured kernels, a server's overheads) {alone:.1f} s for one alone on {node.size} "
        f"{gpu.name.upper()}, {busy:.1f} s among {n} at once: every step also does its share of the others' prompts. "
        f"In 16 bits no load on this node reaches {s.seconds:g} s.",
    )


def _fleet(node: Node) -> Iterator[Claim]:
    s, spec, gpu = node.source, node.spec, node.gpu
    per_second = s.at_once[1] / s.seconds
    yield Claim(
        f"Nodes: {s.rate:,.0f} / ({s.at_once[1]} / {s.seconds:g} s)",
        s.nodes,
        s.rate / per_second,
        "nodes",
        f"{per_second:g} requests a second from each, and eight GPUs in each are the {s.gpus:,}: the division is "
        "right, what goes into it is not.",
        "right",
    )
    operations = s.rate * node.tokens * 2 * spec.active_parameters
    floor = operations / gpu.peak("bf16")
    table = spec.vocab_size * spec.hidden
    yield Claim(
        "GPUs that arithmetic alone asks for",
        s.gpus,
        floor,
        "A100",
        f"{s.rate:,.0f} x {node.tokens} tokens x 2 x {spec.active_parameters / 1e9:.1f}e9 parameters are "
        f"{operations:.2e} operations a second: {floor:,.0f} A100 at all of their {gpu.peak('bf16') / 1e12:.0f}e12, "
        f"more than the {s.gpus:,} it counts ({floor * (1 - table / spec.active_parameters):,.0f} without the "
        "embedding, which is only looked up). It says memory is the limit; at this load it is arithmetic.",
    )
    for limit in (50e-3, 100e-3):
        gpus, ranks, clients = smallest_fleet(node.spec, node.gpu, s, limit)
        yield Claim(
            f"GPUs at {1e3 * limit:.0f} ms a token",
            s.gpus,
            gpus,
            "A100",
            f"By the latency model, in 16 bits without a prefix cache: replicas of {ranks} A100 with {clients} "
            f"requests each, {100 * floor / gpus:.0f} % of peak. Prompts and answers share each step, and kernels, "
            "all-reduce and host take the rest.",
        )


def _network(node: Node) -> Iterator[Claim]:
    s, gpu = node.source, node.gpu
    each = s.transfer / s.gpus
    yield Claim(
        "KV moved from prefill to decode GPUs, in all",
        s.transfer / 1e12,
        s.rate * s.prompt * node.per_token / 1e12,
        "TB/s",
        f"{s.rate:,.0f} x {node.as_counted * s.sized / _GIB:.2f} GB; with {node.per_token / _KIB:,.0f} KiB a token and "
        f"the {s.prompt} tokens of a prompt it is {s.transfer / (s.rate * s.prompt * node.per_token):.0f} times less.",
    )
    right = s.rate * s.prompt * node.per_token / s.gpus
    yield Claim(
        "The same, for each GPU",
        each / 1e9,
        right / 1e9,
        "GB/s",
        f"{s.transfer / 1e15:g} PB/s sounds impossible, and is {each / 1e9:.1f} GB/s on each of {s.gpus:,} GPUs, of a "
        f"NIC's {gpu.nic / 1e9:.0f}; rightly counted it is {100 * right / gpu.nic:.1f} % of the NIC.",
    )


def _seconds(prior: Roofline, load: Load) -> float:
    """Of one request among the load's clients."""
    said = latency(Terms.of(prior, load), load, VLLM)
    return said.ttft + (load.answer - 1) * said.tpot


def smallest_fleet(spec: ModelSpec, gpu: Hardware, source: Source, limit: float) -> tuple[int, int, int]:
    """(GPUs, GPUs of a replica, requests at once on it) of the smallest fleet for the source's rate whose tokens come
    within `limit` seconds of each other in the mean, among replicas of 1, 2, 4 .. GPUs of one node in 16 bits."""
    found = []
    for ranks in (1 << power for power in range(gpu.per_node.bit_length())):
        serving, load = Serving(gpu, ranks), Load(1, source.prompt, source.answer)
        try:
            held, _ = clients_held(spec, serving, load)
        except ConfigError:  # the weights alone are too large
            continue
        prior = Roofline(spec, serving)
        loads = [Load(clients, source.prompt, source.answer) for clients in range(1, held + 1)]
        # TPOT grows with each client.
        clients = bisect_right(loads, limit, key=partial(_tpot, prior))
        if clients:
            seconds = _seconds(prior, loads[clients - 1])
            found.append((round(source.rate * seconds / clients * ranks), ranks, clients))
    if not found:
        raise ConfigError(f"no replica on one node of {gpu.name} comes within {1e3 * limit:g} ms a token")
    return min(found)


def _tpot(prior: Roofline, load: Load) -> float:
    return latency(Terms.of(prior, load), load, VLLM).tpot
