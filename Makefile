# `make demo` and `make test` need a Linux machine with Python 3.11 or newer and its venv module, git and make.
SHELL := /bin/sh
PY := .venv/bin/python
export PYTHONPATH := $(CURDIR)
export PYTHONUNBUFFERED := 1
# Containers often set it. Every process would compile its modules again, and every worker of the tests its test files.
unexport PYTHONDONTWRITEBYTECODE
# What the demo needs, and helm and kubeconform.
TEST_TOOLS := etcd versitygw kube-apiserver kube-controller-manager kube-scheduler kubectl helm kubeconform
.DEFAULT_GOAL := help

.PHONY: help setup site demo demo-down test test-whole test-all test-fast test-hostile test-oldest test-versions test-gs test-stores test-bare test-controllers test-alerts images test-images check lint format types \
	contracts generate bench-scale faults soak bench-laws bench-trainer gpu-check bench-prepare bench-transfer bench-science bench-search bench-economy findings release-check lock clean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  \033[1m%-15s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv from the lock (every other command does this first)
	@./scripts/setup.sh

demo: export ISOLOSS_NEEDED_GB := 13
demo: demo-intro setup ## Run a sweep and a prediction on a local cluster made for it (VERBOSE=1 prints all)
	@$(PY) -m demo up $(if $(VERBOSE),--verbose)

.PHONY: demo-intro
demo-intro:
	@./scripts/demo-intro.sh

demo-down: setup ## Stop everything the demo started (its results stay in .demo)
	@$(PY) -m demo down

test: setup ## Run the tests, with a real API server and a real S3 server
	@$(PY) -m devcluster build $(TEST_TOOLS)
	$(PY) scripts/run_tests.py

test-whole: setup ## Run what make test leaves out: kills at every write, thousands of fuzzed worlds, hostile tenants, compilers
	@$(PY) -m devcluster build $(TEST_TOOLS)
	$(PY) -m pytest -n 2 --dist loadgroup -m whole

test-all: test test-whole test-oldest test-images ## Run everything: make test, the long ones, the oldest Kubernetes, a kubelet (root)

test-fast: setup ## Run the tests that need neither cluster nor S3
	$(PY) -m pytest -m "not cluster and not s3 and not slow and not whole" tests/isoloss tests/isoloss_contract tests/isoloss_operator tests/isoloss_trainer tests/deploy

test-oldest: setup ## Run the cluster's tests against the oldest supported Kubernetes
	@DEVCLUSTER_KUBERNETES=kubernetes-1.31 $(PY) -m devcluster build $(TEST_TOOLS)
	DEVCLUSTER_KUBERNETES=kubernetes-1.31 $(PY) -m pytest -n 2 --dist loadgroup -m "cluster and not whole" tests/devcluster tests/isoloss_operator tests/deploy tests/gitops

test-hostile: setup ## Play hostile tenants and stores against an operator with a neighbour at work
	@$(PY) -m devcluster build $(TEST_TOOLS)
	$(PY) -m pytest -n 2 --durations=0 tests/hostile

test-versions: ## Run the trainer's tests at the corners of its supported range (large downloads)
	@./scripts/test-versions.sh

test-gs: setup ## Run the trainer on a Google Cloud Storage server on this machine
	@$(PY) -m devcluster build fake-gcs-server
	$(PY) -m pytest tests/isoloss_trainer/test_gs.py tests/isoloss_contract

test-stores: setup ## Ask other S3 servers whether they do what docs/reference/support.md says (fetches and builds them)
	@PYTHONPATH="$(CURDIR)" ./scripts/test-stores.sh

test-bare: ## Run the README's commands on bare Debian systems (root; SUITES=bookworm COMMANDS=demo for a part)
	@"$$(./scripts/find-python.sh)" scripts/test_bare.py $(if $(SUITES),--suites $(SUITES)) $(if $(COMMANDS),--commands $(COMMANDS))

test-controllers: setup ## Run sweeps and predictions under Flux's kustomize-controller, Argo CD and Kueue, built from source
	@$(PY) -m devcluster build $(TEST_TOOLS) kustomize-controller argo-cd kueue
	ISOLOSS_TEST_CONTROLLERS=1 $(PY) -m pytest -v tests/controllers

test-alerts: setup ## Fire and clear every alert, and ask a real Prometheus what alerts and dashboard say
	@$(PY) -m devcluster build $(TEST_TOOLS)
	@./scripts/find-prometheus.sh --fetch
	$(PY) -m pytest -v tests/monitoring tests/isoloss_operator/test_prometheus.py

images: setup ## Build both images with buildah, docker or podman (see python -m images --help)
	@$(PY) -m images

test-images: setup ## Run the images on a real kubelet with helm (root; Debian's containerd, buildah; 40 GB)
	ISOLOSS_TEST_IMAGES=1 $(PY) -m pytest -x -v --durations=0 tests/images

check: setup lint types contracts generate-check workflows-check site ## Lint, types, import contracts, generated files in step, workflows

lint:
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types:
	$(PY) -m mypy

contracts:
	.venv/bin/lint-imports

.PHONY: generate-check
generate-check:
	$(PY) -m isoloss_operator.generate.crdgen --check

.PHONY: workflows-check
workflows-check:
	@.venv/bin/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yaml
	@.venv/bin/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yaml .github/ISSUE_TEMPLATE/question.yaml
	@.venv/bin/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml

site: setup ## Build the documentation site into .site/html; dead links and missing pages are errors
	@$(PY) scripts/site.py

format: setup ## Format the code and apply safe lint fixes
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

generate: setup ## Write the generated files (CRDs and the chart's copy)
	$(PY) -m isoloss_operator.generate.crdgen

bench-scale: setup ## What a sweep costs from 100 to 10,000 points, against a bare loop (half an hour; ARGS="--cases 100,50x100")
	@$(PY) -m devcluster build
	$(PY) -m benchmarks.bench_scale $(ARGS)

faults: setup ## Play every fault against the operator and write docs/reference/faults.md (ARGS="--only store/*")
	@$(PY) -m devcluster build
	$(PY) -m tests.faults $(ARGS)

soak: setup ## Random sweeps, edits and faults for half an hour (ARGS="--minutes 600 --seed 1")
	@$(PY) -m devcluster build
	$(PY) -m tests.faults.soak $(ARGS)

bench-laws: setup ## CPU time and memory of fits, from 18 to 10,000 runs
	$(PY) -m benchmarks.bench_laws

bench-trainer: setup ## Trainer against Hugging Face, and torchtitan and litgpt where they are installed
	$(PY) -m benchmarks.bench_trainer $(ARGS)

gpu-check: $(if $(GPU_PYTHON),,setup) ## Everything that only a GPU can show, step by step, resumable (docs/guides/gpu-check.md)
	PYTHONPATH="$(CURDIR):$(CURDIR)/operator:$(CURDIR)/trainer_image$(if $(GPU_PACKAGES),:$(GPU_PACKAGES))" \
	$(or $(GPU_PYTHON),$(PY)) -m benchmarks.gpu_check $(ARGS)

bench-prepare: setup ## Tokens per second and core of preparing a corpus, against a loop and datasets
	$(PY) -m benchmarks.bench_prepare

bench-transfer: setup ## Do continued runs want what the laws say? (resumes; ARGS="--minutes 150", ARGS=--dry-run)
	$(PY) -m benchmarks.transfer $(ARGS)

bench-science: setup ## Regret, refusals and intervals on published and synthetic sweeps, against simpler ways
	$(PY) -m benchmarks.science

bench-search: setup ## A sequential search against training everything (half an hour; ARGS="--quick", ARGS="--jobs 4")
	$(PY) -m benchmarks.search $(ARGS)

bench-economy: setup ## Cost of sweeps against what their answers lose, and whether that was expected (ARGS="--brief", ARGS="--figure FILE")
	$(PY) -m benchmarks.economy $(ARGS)

release-check: setup ## Check what a release needs beside green tests: versions, wheel, chart, site, images
	@./scripts/release-check.sh

findings: ## Does other software still do what findings/ says? (outside CI, downloads packages; ARGS=NAME)
	@./scripts/findings.sh $(ARGS)

lock: setup ## Resolve the lock files again
	./scripts/lock.sh

clean: ## Remove what the commands made in this checkout
	@if [ -x $(PY) ] && [ -e .demo ]; then $(PY) -m demo down; fi
	rm -rf .site .demo .bench .bare .venv .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
