"""What measured kernels reach, by hardware: the few numbers that tools/fit_roofline.py found for the curves of
policy/kernel_curves.py, with the median relative error of each.

Source: kernel tables of vLLM 0.14 (A100) and 0.24 (H100, H200) in ai-dynamo/aiconfigurator (Apache-2.0).

    median error    gemm bf16   gemm fp8   prefill   decode   of 8-bit caches   all-reduce
    a100                6.3 %          -     6.9 %    7.7 %                 -        9.2 %
    h100                5.3 %     11.4 %     6.8 %    6.2 %             5.5 %        9.5 %
    h200                5.7 %     11.4 %     6.6 %    6.4 %             5.6 %        7.1 %

The curve of 8 bits is one for H100 and H200, which multiply alike. Measured alone, its rows come and go at 0.29 of
bandwidth, since the kernel quantizes them itself; a server's compiler does that inside the norm before, so it has the
share of 16 bits here.

send: medians of messages between two devices in microsoft/vidur (MIT), A100 and H100, one node and two; what crosses
nodes depends on their network more than on the device.

Hardware without measured kernels takes the H100's shares of its own limits, which is a guess: `measured` says so.
"""

from headrace.policy.kernel_curves import AllReduce, Decode, Gemm, Kernels, Prefill, SendReceive

_FP8 = Gemm(0.834, 0.833, 129, 1.45)
_A100_SEND = SendReceive(0.765, 8e-6, 0.32, 2.1e-5)
_HOPPER_SEND = SendReceive(0.78, 5e-6, 0.65, 1.6e-5)
_A100 = Kernels(
    gemm=(("bf16", Gemm(0.954, 0.767, 93.8, 0.806)),),
    prefill=Prefill(0.582, 240, 1.17e-5),
    decode=Decode(0.7, 0.0, 1.93e-5),
    all_reduce=AllReduce(0.604, 4.53e-6, 2.34e-7),
    send=_A100_SEND,
)
_H100 = Kernels(
    gemm=(("bf16", Gemm(0.886, 0.883, 20.6, 1.39)), ("fp8", _FP8)),
    prefill=Prefill(0.672, 498, 1.36e-5),
    decode=Decode(0.9, 2.26e-8, 1.23e-5),
    decode_narrow=Decode(0.782, 4.57e-8, 1.47e-5),
    all_reduce=AllReduce(0.676, 3.95e-6, 1.83e-7),
    send=_HOPPER_SEND,
)
_H200 = Kernels(
    gemm=(("bf16", Gemm(0.848, 0.844, 9.14, 1.55)), ("fp8", _FP8)),
    prefill=Prefill(0.664, 477, 1.34e-5),
    decode=Decode(0.863, 2.82e-8, 1.25e-5),
    decode_narrow=Decode(0.612, 4.88e-8, 1.47e-5),
    all_reduce=AllReduce(0.699, 4.29e-6, 1.01e-7),
    send=_HOPPER_SEND,
)
_FITTED = {"a100": _A100, "h100": _H100, "h200": _H200}


def measured(hardware: str) -> bool:
    """Whether kernels were measured on this hardware."""
    return hardware in _FITTED


def kernels_of(hardware: str) -> Kernels:
    """The numbers for this hardware, or the H100's."""
    return _FITTED.get(hardware, _H100)
