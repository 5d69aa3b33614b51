"""Tables of measured kernels: what is read of them, and what the curves' error is where it is known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.core.errors import ConfigError
from headrace.core.hardware import known_hardware
from headrace.plan import kernel_tables
from headrace.policy.fitted_kernels import kernels_of

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
TABLES = Path(os.environ.get("HEADRACE_DATA", "../shared/data")) / "gpu_timings"


def write(folder: Path, name: str, columns: dict[str, list[object]]) -> None:
    parquet.write_table(pyarrow.table(columns), folder / f"{name}_perf.parquet")


def test_rows_are_those_of_a_step_and_none_without_a_time(tmp_path: Path) -> None:
    columns = {
        "m": [1, 17, 32, 16, 64],
        "n": [4096] * 5,
        "k": [4096] * 5,
        "gemm_dtype": ["bfloat16"] * 4 + ["fp8"],
        "latency": [1.0, 1.0, 1.0, 0.0, 1.0],
    }
    write(tmp_path, "gemm", columns)
    assert kernel_tables.matrices(tmp_path, "bf16")["m"].tolist() == [1, 32]
    assert kernel_tables.matrices(tmp_path, "fp8")["m"].tolist() == [64]


def test_a_table_that_is_not_there_or_torn_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gemm_perf.parquet cannot be read as Parquet"):
        kernel_tables.matrices(tmp_path, "bf16")
    (tmp_path / "gemm_perf.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ConfigError, match=r"gemm_perf.parquet cannot be read as Parquet"):
        kernel_tables.matrices(tmp_path, "bf16")


def test_errors_are_those_that_were_made(tmp_path: Path) -> None:
    for name in kernel_tables.GPUS:
        gpu, kernels, folder = known_hardware(name), kernels_of(name), tmp_path / name
        folder.mkdir()
        columns = {"m": [64], "n": [4096], "k": [4096], "gemm_dtype": ["bfloat16"]}
        taken = kernels.multiplier(gpu, "bf16").seconds(64, 4096, 4096, gpu.bandwidth)
        write(folder, "gemm", columns | {"latency": [1e3 * taken / 1.25]})
        heads = {"num_key_value_heads": [8], "num_heads": [32], "head_dim": [128], "kv_cache_dtype": ["bfloat16"]}
        write(folder, "context_attention", heads | {"batch_size": [1], "isl": [8192], "latency": [1.0]})
        write(folder, "generation_attention", heads | {"batch_size": [8], "step": [1023], "latency": [0.1]})
        sent = 1e3 * kernels.all_reduce.seconds(2 * 8192, 4, gpu.link)
        write(
            folder,
            "custom_allreduce",
            {"backend": ["vllm_graph"], "num_gpus": [4], "message_size": [8192], "latency": [sent]},
        )
    for found in kernel_tables.kernel_errors(tmp_path).values():
        assert set(found) == {"gemm bf16", "prefill", "decode bf16", "all-reduce"}
        assert found["gemm bf16"] == {"rows": 1, "median_ape": pytest.approx(25), "p90_ape": pytest.approx(25)}
        assert found["all-reduce"]["median_ape"] == pytest.approx(0, abs=1e-6)


@pytest.mark.skipif(not TABLES.exists(), reason=f"{TABLES} is absent: set HEADRACE_DATA")
def test_attention_and_all_reduces_are_within_a_tenth() -> None:
    for found in kernel_tables.kernel_errors(TABLES).values():
        for kind, error in found.items():
            assert error["rows"] > 60
            if not kind.startswith("gemm"):
                assert error["median_ape"] < 10
