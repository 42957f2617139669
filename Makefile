# Each target installs what it needs, builds and runs. CMakePresets.json has the configurations.

JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
GRID_FLAGS ?= --direction forward,backward --dtype f32,bf16 --head-dim 64,128 --len 512,2048 --causal 0,1
TORCH_FLAGS ?= --lengths 128,512,2048 --seconds 0.2 --patience 2
MAKEFLAGS += --no-print-directory
export PATH := $(CURDIR)/build/tools/bin:$(PATH)
export CMAKE_GENERATOR ?= $(if $(shell PATH="$(PATH)" command -v ninja),Ninja,Unix Makefiles)
# Passed on only when set by the caller: make's own default for CXX is not what CMake would choose.
ifneq ($(origin CXX),default)
export CXX
endif
ifneq ($(origin CC),default)
export CC
endif

sources = $(shell find include src kernels reference check files machine cli python tests fuzz bench examples -name '*.cpp' -o -name '*.h' -o -name '*.c')
configure = cmake --preset $(1) --log-level=NOTICE
build = $(configure) && cmake --build --preset $(1) --parallel $(JOBS) $(2)
# The sanitizer targets link the test objects of the release build against an instrumented library.
build_sanitized = $(call configure,release) && cmake --build --preset $(1) --parallel $(JOBS)
run_tests = ctest --preset $(1) --parallel $(JOBS)

.PHONY: help setup demo build test python-test asan tsan clang fuzz gpu-test gpu-sanitize gpu-bench bench teeth docs pictures format format-check tidy install clean

help: ## Show this list
	@echo "make <target>, for example make demo or make test:"
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup:
	@tools/setup.sh build

demo: ## Attention on the best device found, checked against the oracle, timed against naive attention
	@tools/setup.sh demo
	@$(call build,release,--target cuflash_cli)
	build/release/bin/cuflash demo

build: setup ## Build everything, optimised
	@$(call build,release)

test: setup ## Build and run every test
	@tools/setup.sh python
	@mkdir -p build && echo 'Meanwhile what the Python tests need is downloaded: build/python-prepare.log'
	@tools/python_test.sh prepare >build/python-prepare.log 2>&1 & $(call build,release)
	@tools/python_test.sh install >build/python-install.log 2>&1 & $(call run_tests,release)
	@$(MAKE) python-test

python-test: ## Run the tests of the Python package in a virtual environment (PYTEST_FLAGS)
	@tools/setup.sh python
	@JOBS=$(JOBS) tools/python_test.sh cpu $(PYTEST_FLAGS)

asan: setup ## Run the tests under the address and undefined behaviour sanitizers, with fewer random cases
	@$(call build_sanitized,asan)
	@$(call run_tests,asan)

tsan: setup ## Run the tests under the thread sanitizer, with fewer random cases
	@$(call build_sanitized,tsan)
	@$(call run_tests,tsan)

clang: ## Build the C++ tests with clang and run them
	@tools/setup.sh clang
	@$(call build,clang)
	@$(call run_tests,clang)

fuzz: ## Run libFuzzer on the readers of .npy and .safetensors files, FUZZ_SECONDS (60) each; needs clang
	@tools/setup.sh fuzz
	@$(call build,fuzz)
	@tools/fuzz.sh $(FUZZ_SECONDS)

gpu-test: build ## Run the GPU tests, GPU_COUNT random problems, and large problems against PyTorch; without a GPU says so
	@JOBS=$(JOBS) tools/gpu_test.sh test

gpu-sanitize: build ## Run a reduced suite under compute-sanitizer: memcheck, racecheck, initcheck, synccheck
	@tools/gpu_test.sh sanitize

gpu-bench: ## Measure a GPU: against PyTorch (GPU_BENCH_FLAGS), what models run (WORLD_FLAGS), the host time of a call
	@tools/setup.sh bench
	@$(call build,release,--target cuflash cuflash_overhead)
	build/release/bin/cuflash_overhead
	python3 bench/cuda_torch.py build/release/lib/libcuflash.so $(GPU_BENCH_FLAGS)
	python3 bench/world.py build/release/lib/libcuflash.so $(WORLD_FLAGS)

bench: ## Measure speed on the CPU, alone (GRID_FLAGS, BENCH_FLAGS) and against PyTorch (TORCH_FLAGS, DECODE_FLAGS)
	@tools/setup.sh demo
	@$(call build,release,--target cuflash_cli cuflash_bench cuflash cuflash_stream)
	build/release/bin/cuflash bench --device cpu $(GRID_FLAGS)
	build/release/bin/cuflash_bench $(BENCH_FLAGS)
	tools/bench_torch.sh bench/torch_cpu.py $(TORCH_FLAGS)
	tools/bench_torch.sh bench/decode_torch.py $(DECODE_FLAGS)

teeth: setup ## Plant faults in a copy, one at a time, and show that the tests catch each
	@tools/setup.sh teeth
	@python3 tools/teeth.py --jobs $(JOBS)

docs: ## Generate the API reference from the headers, in build/docs/html
	@tools/setup.sh docs
	@mkdir -p build/docs
	@CUFLASH_VERSION=$$(sed -n 's/^#define CUFLASH_VERSION_[A-Z]* //p' include/cuflash/cuflash.h | paste -sd.) doxygen
	@echo "build/docs/html/index.html"

pictures: ## Draw the pictures of docs/algorithm.md, which count tiles with the library; needs matplotlib
	@$(call build,release,--target cuflash cuflash_cli)
	python3 tools/draw_docs.py --build build/release

format: ## Format all C and C++ files
	@tools/setup.sh format
	clang-format -i $(sources)

format-check: ## Fail if a file is not formatted
	@tools/setup.sh format
	clang-format --dry-run --Werror $(sources)

tidy: ## Run clang-tidy over the library, the reference, the checks and the tool
	@tools/setup.sh clang
	@tools/setup.sh tidy
	@$(call configure,clang)
	@printf '%s\n' $(filter src/%.cpp reference/%.cpp check/%.cpp files/%.cpp machine/%.cpp cli/%.cpp,$(sources)) | \
	  xargs -P $(JOBS) -n 1 clang-tidy -p build/clang --quiet

install: ## Build and install library, headers and tool under PREFIX (/usr/local)
	@tools/setup.sh demo
	@$(call build,release,--target cuflash cuflash_static cuflash_cli)
	cmake --install build/release --prefix $(PREFIX)

clean: ## Remove everything that was built
	rm -rf build
