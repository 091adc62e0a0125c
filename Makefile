# fourfold's chores. `make` alone lists them. Each does its own set-up, in .venv, and nothing is done twice: the stamps in
# .venv/stamps say what has been done, and a changed file makes the step that reads it run again.

PYTHON ?= python3
VENV := .venv
STAMPS := $(VENV)/stamps
RUN := $(VENV)/bin/python
# torch's own C++ extension builder, which the benchmarks compare with, looks for ninja there.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

# What make build compiles or configures from; a change in the Python sources needs no build, the install is editable.
BUILD_INPUTS := CMakeLists.txt pyproject.toml $(shell find cmake cpp cuda hip metal scripts/bitcode.py -type f 2>/dev/null)
PIP_INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
# What else changes a build, from the environment or make's command line; pip and CMake read it there themselves.
SETTINGS := FOURFOLD_CUDA FOURFOLD_HIP FOURFOLD_METAL FOURFOLD_CPU_LEVELS FOURFOLD_BITCODE FOURFOLD_SANITIZE FOURFOLD_TORCH_HEADERS FOURFOLD_LIBRARY \
  TORCH_CUDA_ARCH_LIST CUDAARCHS CUDACXX CUDAHOSTCXX CUDAFLAGS CUDAToolkit_ROOT CUDA_HOME CUDA_PATH \
  PYTORCH_ROCM_ARCH HIPCXX ROCM_PATH ROCM_HOME CXX CXXFLAGS LDFLAGS Torch_ROOT CMAKE_ARGS FOURFOLD_NO_EXTENSION
CHOSEN := $(foreach name,$(SETTINGS),$(if $(filter-out undefined default,$(origin $(name))),$(name)=$($(name))))

.PHONY: force help python build test lint docs check-backends check-gpu check-mac sanitize-address sanitize-thread demo bench wheel clean
.DELETE_ON_ERROR:

help:
	@echo "make build   build the library and install it, editable, into $(VENV); also after a change in C++"
	@echo "make test    run the tests                       TESTS='tests/test_import.py -x' selects"
	@echo "make demo    train a small language model with plain PyTorch and with fourfold; DEMO='--steps 200' is a quick look"
	@echo "make bench   time the operators against other ways to run the same mathematics; BENCH=--quick is a quick look"
	@echo "make check-backends   compile every GPU kernel, link it, run it in the simulator; needs Linux and no GPU"
	@echo "make check-gpu        build for this machine's GPU with the torch of PYTHON, test and time it there"
	@echo "make check-mac        the same for a Mac's GPU"
	@echo "make sanitize-address  run the operators under AddressSanitizer and UBSan; needs GCC"
	@echo "make sanitize-thread   run the recurrent engine under ThreadSanitizer; needs GCC"
	@echo "make lint    check the Python sources with ruff, and the workflows with zizmor and actionlint"
	@echo "make docs    build the documentation as a site, build/docs/index.html; warnings and broken links are errors"
	@echo "make wheel   build the wheel for this machine, and test it in a fresh environment"
	@echo "make clean   remove what the others made"
	@echo
	@echo "PYTHON=python3.12      the Python to use, 3.10 or later"
	@echo "FOURFOLD_CUDA=ON       the CUDA kernels, without a GPU here too; OFF leaves them out; likewise FOURFOLD_HIP"
	@echo "FOURFOLD_CPU_LEVELS=ON    all the kernels for CPUs, also those that this one can't run"
	@echo "FOURFOLD_BITCODE=ON    the CPU's elementary functions for compiled programs to inline; needs clang++ or ziglang"
	@echo "TORCH_CUDA_ARCH_LIST=9.0   the GPUs to compile for, instead of this machine's"
	@echo "TORCH_INDEX=URL        a package index to look for torch in as well, such as one with CPU builds"
	@echo "OTHER_TORCH_PYTHON=... make wheel: a Python with another torch, under which the same wheel is tested too"
	@echo "WHEEL_TESTS=...        make wheel: the tests to run, instead of all"
	@echo "GPU='--steps tests'    make check-gpu and check-mac: the options of scripts/check_gpu.py"

build: $(STAMPS)/build
	@echo "fourfold is built: $(RUN) -m fourfold info"

# All tests in as many processes as there are cores, whose threads sleep while they wait: spinning, they would wait in each
# other's way. What is selected runs in one.
ALL_TESTS := -n auto --maxprocesses 8 --dist worksteal

test: $(STAMPS)/tools $(STAMPS)/build
	$(if $(TESTS),,OMP_WAIT_POLICY=PASSIVE )$(RUN) -m pytest $(or $(TESTS),$(ALL_TESTS))

demo: $(STAMPS)/build
	$(RUN) -m fourfold demo --out demo-output $(DEMO)

bench: $(STAMPS)/build
	$(RUN) -m benchmarks all $(BENCH)

check-backends: $(STAMPS)/tools $(STAMPS)/build
	$(RUN) scripts/check_backends.py

# Not in $(VENV): the torch there is the one from a package index, and this one has to suit the machine's driver.
check-gpu: python
	$(PYTHON) scripts/gpu_environment.py
	.venv-gpu/bin/python scripts/check_gpu.py $(GPU)

check-mac: python
	$(PYTHON) scripts/gpu_environment.py mps
	.venv-gpu/bin/python scripts/check_gpu.py --device mps $(GPU)

sanitize-address sanitize-thread: sanitize-%: $(STAMPS)/tools
	$(RUN) scripts/sanitize.py $*

lint: $(STAMPS)/tools
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) scripts/readme_tables.py --check
	$(RUN) scripts/lint_workflows.py

# Whole each time: of a page that didn't change, Sphinx would not repeat a warning.
docs: $(STAMPS)/docs $(STAMPS)/build
	rm -rf build/docs
	$(RUN) -m sphinx -W --keep-going -q -E -d build/doctrees docs build/docs
	@echo "the site is built: build/docs/index.html"

wheel: $(STAMPS)/tools
	$(RUN) scripts/wheel.py $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX)) \
	  $(if $(OTHER_TORCH_PYTHON),--other-torch-python $(OTHER_TORCH_PYTHON)) -- $(WHEEL_TESTS)

clean:
	rm -rf build dist $(VENV) .venv-wheel .venv-gpu .pytest_cache .ruff_cache demo-output

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "fourfold needs Python 3.10 or later, and $(PYTHON) is not: name another one, make PYTHON=..." >&2; exit 1; }

$(STAMPS)/venv: | python
	$(PYTHON) -m venv $(VENV)
	mkdir -p $(STAMPS) && touch $@

$(STAMPS)/packages: requirements-build.txt $(STAMPS)/venv
	$(RUN) -m pip install $(PIP_INDEX) -r requirements-build.txt
	touch $@

$(STAMPS)/tools: requirements-dev.txt requirements-docs.txt $(STAMPS)/packages
	$(RUN) -m pip install $(PIP_INDEX) -r requirements-dev.txt
	touch $@

$(STAMPS)/docs: requirements-docs.txt $(STAMPS)/packages
	$(RUN) -m pip install $(PIP_INDEX) -r requirements-docs.txt
	touch $@

# As old as the last change of a setting.
$(STAMPS)/settings: export CHOSEN := $(CHOSEN)
$(STAMPS)/settings: force $(STAMPS)/venv
	@printf '%s\n' "$$CHOSEN" | cmp -s - $@ || printf '%s\n' "$$CHOSEN" > $@

# -v shows the table that the configuration ends in. --no-deps: what fourfold depends on is installed, at its pinned version.
$(STAMPS)/build: $(BUILD_INPUTS) $(STAMPS)/packages $(STAMPS)/settings
	FOURFOLD_CPU_LEVELS=$${FOURFOLD_CPU_LEVELS:-AUTO} $(RUN) -m pip install -v --no-build-isolation --no-deps --editable .
	touch $@
