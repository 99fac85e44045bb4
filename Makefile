# make demo   a trained model, compiled by stepwell, searches Python's standard library   [QUERY="..."]
# make test   the tests                                                                    [TESTS=tests/dialects]
# make test-long     the long suites, those marked `long`                                       [LONG="long and not crossed"]
# make fuzz   random programs against eager, SECONDS=120; prints its seed                  [SEED=...] [KEEP=folder]
# make test-arm      C programs and packages for 64-bit Arm, emulated: it needs qemu-aarch64 and aarch64-linux-gnu-gcc (Debian: qemu-user, gcc-aarch64-linux-gnu)
# make test-arm-torch  some tests of the CPU target in an emulated Arm Python with torch: the same tools, and Debian's apt
# make test-triton   kernels for GPUs compiled to cubin and hsaco, which needs Triton but no GPU
# make smoke  README's examples and a few tests of each layer, for another torch: TORCH=torch==2.14.1
# make lint   ruff and the type checker
# make docs   the pages of docs/ as a site in build/site; a link that leads nowhere fails
#
# Each makes a virtual environment when it is not there and installs what it needs; the second time it starts at once.
# PYTHON= another interpreter (3.11 to 3.14); TORCH= another torch requirement (2.11 or newer), in an environment of its own;
# TRITON= another Triton (3.6.0 to 3.9.0; Linux).

PYTHON ?= python3
PINNED := torch==2.13.0
TORCH ?= $(PINNED)
TRITON ?= triton==3.6.0
# .venv for the pinned torch, .venv-torch-2.14.1 for another one
NAME_OF_TORCH := $(shell printf %s '$(TORCH)' | tr -c 'a-zA-Z0-9.+' '-' | tr -s -)
VENV ?= .venv$(if $(filter-out $(PINNED),$(TORCH)),-$(NAME_OF_TORCH))
TESTS ?= tests
LONG ?= long
QUERY ?=
SECONDS ?= 120
SEED ?=
KEEP ?= fuzz-found

PY := $(VENV)/bin/python
# what is imported is compiled then, and once, whatever the environment says; half of the files never are
export PYTHONDONTWRITEBYTECODE :=
TESTED := OMP_NUM_THREADS=1 $(PY)
TRITON_FOLDER := $(VENV)/$(subst ==,-,$(TRITON))
PIP := $(PY) -m pip --disable-pip-version-check install --quiet --no-compile

SMOKE := tests/test_readme.py tests/test_packaging.py tests/passes/fingerprint/test_fingerprint.py tests/targets/host tests/tools/cache/test_aot_cache.py \
  tests/lowering/fx_to_nd/rules/test_pointwise.py tests/e2e/test_contract_driver.py tests/e2e/test_contract_operators.py \
  tests/e2e/test_contract_layouts.py tests/e2e/test_quantised_tensors.py tests/e2e/test_threads_and_processes.py

ARM_TESTS := tests/tools/package/c/test_c_arm.py tests/tools/package/test_arm.py tests/tools/package/test_elf_image.py \
  tests/targets/cpu/gemm/test_arm.py

# what takes about five minutes there (docs/lab/arm.md)
ARM_TORCH_TESTS ?= tests/targets/cpu/test_half_bits.py tests/lowering/mem_to_cpu/test_division.py \
  tests/lowering/mem_to_cpu/test_contract.py tests/lowering/mem_to_cpu/test_loops_inside.py \
  tests/lowering/mem_to_cpu/test_wrapped_loads.py tests/lowering/mem_to_cpu/test_tiles.py \
  tests/lowering/mem_to_cpu/test_shared_loops.py

.PHONY: demo test test-long test-arm test-arm-torch test-triton smoke fuzz lint docs clean

demo: $(VENV)/installed-demo
	$(PY) -m stepwell.tools.demo $(if $(QUERY),"$(QUERY)")

test: $(VENV)/installed-test
	$(TESTED) -m pytest -q -n 2 --dist loadscope -m "not long" $(TESTS)

test-long: $(VENV)/installed-test
	$(TESTED) -m pytest -q -n 2 --dist loadscope -m "$(LONG)" $(TESTS)

smoke: $(VENV)/installed-test
	$(TESTED) -m pytest -q -n 2 --dist loadscope -m "not long" $(SMOKE)

fuzz: $(VENV)/installed-test
	OMP_NUM_THREADS=1 $(PY) -m stepwell.tools.fuzz --seconds $(SECONDS) --jobs 2 --keep $(KEEP) $(if $(SEED),--seed $(SEED))

# without the tools, what runs programs is skipped, with the reason
test-arm: $(VENV)/installed-test
	STEPWELL_TEST_ARM=1 $(TESTED) -m pytest -q -rs -n 2 --dist loadscope $(ARM_TESTS)

test-arm-torch: $(VENV)/installed-test
	@$(PY) tests/arm_torch.py build/arm
	@[ ! -x build/arm/python ] || OMP_NUM_THREADS=1 build/arm/python -m pytest -q -p no:cacheprovider -m "not long" $(ARM_TORCH_TESTS)

# sm_90 and gfx942; with -k triton the programs compile for sm_80, too
test-triton: $(VENV)/installed-test $(TRITON_FOLDER)
	OMP_NUM_THREADS=1 STEPWELL_TEST_TRITON=$(abspath $(TRITON_FOLDER)) \
	  $(PY) -m pytest -q -n 2 --dist loadscope tests/targets/triton tests/lowering/mem_to_tt -k "triton and not sm_80"

# beside the virtual environment's packages: the other tests see a machine without Triton
$(TRITON_FOLDER): | $(PY)
	@echo "installing $(TRITON) into $@ ..."
	@$(PIP) --no-deps --target $@ '$(TRITON)'

lint: $(VENV)/installed-lint
	$(VENV)/bin/ruff check .
	$(VENV)/bin/basedpyright

docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet

clean:
	rm -rf .venv .venv-torch* $(VENV) build *.egg-info

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "stepwell needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "$(PYTHON) cannot make a virtual environment (on Debian: apt install python3-venv)."; exit 1; }

# One stamp for each set of extra packages, older than pyproject.toml when something may have changed.
$(VENV)/installed-%: pyproject.toml | $(PY)
	@echo "installing what 'make $*' needs into $(VENV) ..."
	@$(PIP) "$(TORCH)" 'setuptools>=77' wheel
	@$(PIP) --no-build-isolation -e '.[$(EXTRAS_$*)]'
	@touch $@

EXTRAS_demo := demo
EXTRAS_test := test,demo
EXTRAS_docs := docs
EXTRAS_lint := test,demo,lint,docs
