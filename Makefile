# make serve    install the package and its kernels into .venv, fetch the default model, serve it
# make test     set up and run every test
# make check    lint, format, types, import rules, line budget
# make bench    measure throughput, latency and start-up on this machine
# make kernels  build the kernels into src/headrace, for work on the sources
# make fuzz     send the API, the readers of model files and the engine's messages what is nearly right, for long
# make combinations   draw requests, settings and mishaps together and hold every answer against the plain one, for long
# make emulate  run the kernel tests on every instruction set, those that this processor lacks emulated
# make sanitize run the kernel tests under sanitizers: SANITIZE=address,undefined or thread
# make clean    remove what these made
#
# PYTHON=  an interpreter of version 3.11 or later   MODEL=, PORT=, ARGS=  what `make serve` and `make bench` use
# TESTS=   what `make test` hands to pytest

VENV ?= .venv
MODEL ?=
PORT ?= 8000
ARGS ?=
TESTS ?=
SANITIZE ?= address,undefined
BIN = $(VENV)/bin

CANDIDATES = python3 python3.14 python3.13 python3.12 python3.11
NEW_ENOUGH = import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in $(CANDIDATES); do $$p -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$p && break; done)

# What the installed package is made of: an edit to any of it installs again.
SOURCES := $(shell find src csrc -type f \( -name '*.py' -o -name '*.h' -o -name '*.cpp' \) 2>/dev/null)
RECIPE := pyproject.toml $(wildcard CMakeLists.txt)

NEEDS = import sys, tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
    print(*p["dependencies"], *p["optional-dependencies"][sys.argv[1]], sep="\n")

.PHONY: serve test check kernels bench fuzz combinations emulate sanitize clean
.DELETE_ON_ERROR:
.NOTPARALLEL:

serve: $(VENV)/.package
	@$(BIN)/headrace serve $(MODEL) --port $(PORT) $(ARGS)

test: $(VENV)/.test $(VENV)/.package
	@$(BIN)/python -m pytest $(TESTS)

check: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@PYTHONPATH=src $(BIN)/lint-imports
	@$(BIN)/python tools/line_budget.py

bench: $(VENV)/.package
	@$(BIN)/headrace bench startup $(MODEL) $(ARGS)
	@$(BIN)/headrace bench latency $(MODEL) $(ARGS)
	@$(BIN)/headrace bench throughput $(MODEL) $(ARGS)

kernels: $(VENV)/.build-tools
	@$(BIN)/cmake -S . -B build/dev -G Ninja -DCMAKE_BUILD_TYPE=Release \
	    -DCMAKE_MAKE_PROGRAM="$(abspath $(BIN))/ninja" -DPython_EXECUTABLE="$(abspath $(BIN))/python"
	@$(BIN)/cmake --build build/dev
	@$(BIN)/cmake --install build/dev --prefix src

KERNEL_TESTS ?= tests/ops/test_linear.py tests/ops/test_cpu.py tests/ops/test_cpu_invariance.py tests/ops/test_experts.py \
    tests/ops/test_packed_file.py tests/ops/test_sampling.py tests/worker/drafters/test_lookup.py

# $(call kernels-apart,FOLDER,SETTINGS): a copy of the sources with a module of its own, so that neither the installed nor
# the in-place one is touched.
define kernels-apart
	@$(BIN)/cmake -S . -B "$(1)" -G Ninja $(2) \
	    -DCMAKE_MAKE_PROGRAM="$(abspath $(BIN))/ninja" -DPython_EXECUTABLE="$(abspath $(BIN))/python"
	@$(BIN)/cmake --build "$(1)"
	@rm -rf "$(1)/src" && cp -R src "$(1)/src" && rm -f "$(1)"/src/headrace/*.so
	@$(BIN)/cmake --install "$(1)" --prefix "$(1)/src"
endef

# AVX-512 and AVX-VNNI paths run on any processor that has AVX2.
emulate: $(VENV)/.build-tools $(VENV)/.test
	$(call kernels-apart,build/emulate,-DHEADRACE_EMULATE=ON)
	@PYTHONPATH=build/emulate/src $(BIN)/python -m pytest $(KERNEL_TESTS)

# The runtime has to be there before the interpreter, which is not built with it and never frees all it takes, and the C++
# library beside it, or the first exception ends the process. Only what this processor can run is built. Left out is the
# test that bounds the address space, of which sanitizers take terabytes.
SANITIZED = build/sanitize-$(SANITIZE)
SANITIZER = $(foreach library,lib$(if $(findstring thread,$(SANITIZE)),tsan,asan).so libstdc++.so.6,$(shell \
    $${CXX:-c++} -print-file-name=$(library)))
SANITIZED_ISAS = $(if $(shell grep -lw avx2 /proc/cpuinfo),avx2)$(if $(shell grep -lw avx_vnni /proc/cpuinfo),;avxvnni)$(if \
    $(shell grep -lw avx512_vnni /proc/cpuinfo),;avx512)

sanitize: $(VENV)/.build-tools $(VENV)/.test
	$(call kernels-apart,$(SANITIZED),-DHEADRACE_SANITIZE="$(SANITIZE)" -DHEADRACE_X86_ISAS="$(SANITIZED_ISAS)")
	@LD_PRELOAD="$(strip $(SANITIZER))" ASAN_OPTIONS=detect_leaks=0 OPENBLAS_NUM_THREADS=1 PYTHONPATH="$(SANITIZED)/src" \
	    $(BIN)/python -m pytest -s -p no:cacheprovider $(KERNEL_TESTS) \
	    --deselect tests/ops/test_cpu.py::test_a_refused_thread_is_an_error_and_no_crash

fuzz: $(VENV)/.test $(VENV)/.package
	@$(BIN)/python -m pytest tests/fuzz --hypothesis-profile=fuzz --timeout 0

combinations: $(VENV)/.test $(VENV)/.package
	@$(BIN)/python -m pytest tests/test_combinations.py tests/server/test_guessed_answers.py --hypothesis-profile=fuzz --timeout 0

clean:
	rm -rf $(VENV) build dist src/headrace/*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "Headrace needs Python 3.11 or later with venv (PYTHON=/path/to/python3)"; exit 1; }
	@$(PYTHON) -c '$(NEW_ENOUGH)' || { echo "$(PYTHON) is older than 3.11 or lacks venv (PYTHON=/path/to/python3)"; exit 1; }
	@command -v c++ >/dev/null || command -v "$${CXX:-g++}" >/dev/null || \
	    { echo "Headrace compiles its kernels: a C++17 compiler is needed (g++ or clang++, or CXX=)"; exit 1; }
	@echo "Creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.package: $(VENV)/.created $(SOURCES) $(RECIPE)
	@echo "Installing headrace into $(VENV) and compiling its kernels"
	@$(BIN)/python -m pip install -qq .
	@touch $@

# What the package and one of its extras need, without the package, which need not be compiled again for it.
$(VENV)/.test $(VENV)/.dev: $(VENV)/.%: $(VENV)/.created pyproject.toml
	@echo "Installing what '$*' needs into $(VENV)"
	@$(BIN)/python -c '$(NEEDS)' $* > $@.txt
	@$(BIN)/python -m pip install -qq -r $@.txt
	@touch $@

$(VENV)/.build-tools: $(VENV)/.created pyproject.toml
	@$(BIN)/python -m pip install -qq 'scikit-build-core>=0.11' 'nanobind>=2.4' cmake ninja
	@touch $@
