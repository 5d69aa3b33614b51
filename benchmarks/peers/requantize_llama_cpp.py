"""Rewrites a GGUF in Q4_0, the type that llama.cpp repacks for its fastest CPU kernels. Run it with the Python of
llama.cpp's virtual environment.

    PYTHON benchmarks/peers/requantize_llama_cpp.py MODEL.gguf MODEL.Q4_0.gguf
"""

from __future__ import annotations

import ctypes
import sys

import llama_cpp as llama

source, target = sys.argv[1:]
parameters = llama.llama_model_quantize_default_params()
parameters.ftype = llama.LLAMA_FTYPE_MOSTLY_Q4_0
parameters.allow_requantize = True
parameters.nthread = 2
if llama.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(parameters)) != 0:
    raise SystemExit(f"llama.cpp cannot quantize {source}")
