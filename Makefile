# Every verb of the project. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := api base client operator agent kubectl devcluster demo images release tests examples charts reference
KUBELET := berth_agent/kubelet_api
STUBS := .build/stubs
# uvloop drops what pytest-timeout raises. This ends the worker of a test that hangs, with the stacks of its threads. A new
# worker would run the test again.
end_after = --max-worker-restart=0 -o faulthandler_timeout=$(1) -o faulthandler_exit_on_timeout=true
# Many images set this, and each of the hundreds of programs that tests start would compile all its modules again.
demo test e2e node-e2e chaos month chaos-broken chaos-devices claims-audit partitions-storm upgrade-e2e: export PYTHONDONTWRITEBYTECODE :=

# Numbers of the command line are checked before anything is built.
NUMBERS := BINDS CALLS CASES CLAIMS CLASSES COUNT DEVICES EVENTS FAST FAULTS HOSTILE JOBS JOINING KILLS LARGE LOSSES MINUTES \
	NODES OVERLOAD PODS REPEAT ROUNDS SAMPLES SCENARIOS SCRAPED SECONDS SEED SEEDS SLOW STARTS TURNOVER VISIBILITY WAITING \
	WARM WARM_UP WATCHERS WORKERS
$(foreach name,$(NUMBERS),$(if $(findstring command,$(origin $(name))),$(if \
	$(shell [[ '$($(name))' =~ ^([0-9]+(\.[0-9]+)?)?$$ ]] || echo wrong),$(error $(name) must be a number, not '$($(name))'))))

##@ Every day

.PHONY: help
help: ## list the verbs
	@awk -F ':.*## ' '/^##@ /{print substr($$0, 5) ":"} /^[a-z0-9-]+:.*## /{printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Where a package of the system is missing, `venv` fails after it made the folder, but before pip.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "berth needs Python 3.11 or later: PYTHON=python3.12")'
	@$(PYTHON) -m venv $(VENV)

# The stamp changes with the lock file, so that a second run installs nothing and needs no network.
$(VENV)/.installed: requirements.lock pyproject.toml | $(BIN)/pip
	@echo "berth: installing the Python environment into $(VENV)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# What the demo runs needs a third of these packages. After `make setup` nothing is missing.
$(VENV)/.demo: requirements.lock pyproject.toml | $(BIN)/pip
	@echo "berth: installing the Python packages of the demo into $(VENV)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-compile --require-hashes \
		$(foreach extra,build operator agent kubectl devcluster,-r <($(BIN)/python images/requirements.py $(extra)))
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: setup
setup: $(VENV)/.installed ## create the virtual environment from requirements.lock

.PHONY: demo
demo: $(if $(wildcard $(VENV)/.installed),setup,$(VENV)/.demo) ## show cards, a gang, a wait and a dead node on a real control plane: ARGS=--page
	@$(BIN)/python -m demo $(ARGS)

.PHONY: test
test: setup ## run the tests that need no cluster and no compiled program (3 minutes): WORKERS=3 ARGS=tests/unit/core
	@$(BIN)/pytest $(or $(ARGS),tests/unit tests/component) -n $(or $(WORKERS),3) --dist loadfile $(call end_after,300)

.PHONY: e2e
e2e: test-binaries ## run the tests on real programs: control plane, kubelet, Prometheus, Helm, Chromium (14 minutes): WORKERS=4
	@BERTH_REQUIRE_RIGHTS=1 $(BIN)/python -m tests.harness.steady -n $(or $(WORKERS),4) --dist loadfile --no-loadscope-reorder $(call end_after,1500) \
		$$(find tests -mindepth 1 -maxdepth 1 -type d ! -name unit ! -name component ! -name __pycache__)

.PHONY: lint
lint: setup verify types imports docs ## check format, style, types, layers, generated files, English and links of documents
	@$(BIN)/ruff format --check --quiet $(SOURCES)
	@$(BIN)/ruff check --quiet $(SOURCES)
	@$(BIN)/python -m tests.harness.prose

.PHONY: fmt
fmt: setup ## format the code
	@$(BIN)/ruff format $(SOURCES)
	@$(BIN)/ruff check --fix --quiet $(SOURCES)

.PHONY: generate
generate: stubs binaries ## write the files that are made from the models, interfaces and manifests
	@$(BIN)/python -m berth_api.crd crds
	@$(BIN)/python -m berth_operator.settings.schema docs/configuration.schema.json
	@$(BIN)/python -m berth_operator.metrics.monitoring.dashboard manifests/components
	@$(BIN)/python -m reference docs/reference
	@$(BIN)/python -m reference.policies
	@$(BIN)/python -m reference.kueue
	@$(BIN)/python -m charts.generate
	@cp $(STUBS)/$(KUBELET)/* agent/$(KUBELET)

# Copies keep the paths of the repository, and the site shows nothing but documents.
PAGES := README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md images/README.md charts/berth/README.md

.PHONY: docs
docs: setup ## build the site of the documents in .build/site, and fail for a broken link or anchor
	@rm -rf .build/pages .build/site && mkdir -p .build/pages
	@cp --parents $(PAGES) $$(find docs -type f ! -name zensical.toml) .build/pages
	@cp docs/zensical.toml .build
	@$(BIN)/zensical build --strict --clean --config-file .build/zensical.toml > .build/site.log 2>&1 \
		|| { sed 's/\x1b\[[0-9;]*m//g' .build/site.log >&2; exit 1; }

.PHONY: clean
clean: ## remove what was built here (the per-user cache of programs stays)
	@rm -rf $(VENV) .build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

##@ Try it

.PHONY: kind
kind: ## install Berth in a kind cluster with two simulated GPUs, and run a pod (needs Docker, kind, kubectl and helm)
	@demo/kind.sh

.PHONY: trial
trial: node-binaries ## the same without Docker, on a real node of the development cluster (root on Debian 12)
	@$(BIN)/python -m devcluster build helm > /dev/null
	@demo/kind.sh devcluster

##@ Programs and images

.PHONY: binaries
binaries: setup ## build the cluster's programs once per user (about 8 minutes, then cached)
	@$(BIN)/python -m devcluster build > /dev/null

.PHONY: node-binaries
node-binaries: binaries ## build also what a real node runs, where there can be one (4 minutes, then cached)
	@$(BIN)/python -m devcluster build --real-node > /dev/null

.PHONY: test-binaries
test-binaries: node-binaries ## build also the Prometheus, Helm, DRA driver and actionlint that tests use (4 minutes, then cached), and find Chromium
	@$(BIN)/python -m devcluster build prometheus promtool helm dra-example-kubeletplugin actionlint > /dev/null
	@$(BIN)/python -m tests.programs.chromium > /dev/null

.PHONY: images
images: setup ## build the images of operator and agent as OCI archives in .build/images (root on Debian 12)
	@$(BIN)/python -m devcluster images .build/images

##@ Parts of the checks

.PHONY: types
types: setup ## check the types
	@$(BIN)/mypy
	@$(BIN)/mypy --explicit-package-bases tests
	@$(BIN)/mypy examples/npu/berth_example_npu examples/gpus/berth_example_gpus
	@MYPYPATH=images $(BIN)/mypy images/licences.py
	@$(BIN)/mypy kubectl/krew/archive.py

.PHONY: imports
imports: setup ## check the layers' imports
	@$(BIN)/lint-imports

.PHONY: stubs
stubs: setup ## write what protoc makes of the interfaces of kubelet into .build
	@rm -rf $(STUBS) && mkdir -p $(STUBS)
	@PATH=$(BIN):$$PATH $(BIN)/python -m grpc_tools.protoc -I agent agent/$(KUBELET)/*.proto --python_out=$(STUBS) \
		--grpc_python_out=$(STUBS) --mypy_out=quiet:$(STUBS) --mypy_grpc_out=quiet,only_async:$(STUBS)

.PHONY: verify
verify: stubs ## fail where a generated file differs from its model
	@$(BIN)/python -m berth_api.crd --check crds
	@$(BIN)/python -m berth_operator.settings.schema --check docs/configuration.schema.json
	@$(BIN)/python -m berth_operator.metrics.monitoring.dashboard --check manifests/components
	@$(BIN)/python -m reference --check docs/reference
	@$(BIN)/python -m reference.policies --check
	@$(BIN)/python -m reference.kueue --check
	@$(BIN)/python -m tests.judges page --check
	@diff --recursive --brief --exclude=__init__.py --exclude=__pycache__ --exclude='*.proto' \
		agent/$(KUBELET) $(STUBS)/$(KUBELET) || { echo "run \`make generate\`" >&2; exit 1; }

# Names keep their extras: without them pip 23 takes the newest release of `coverage[toml]`, whose hash the file lacks.
# It needs no environment, so that it can mend a lock from which none can be installed.
.PHONY: lock
lock: ## resolve requirements.lock again from pyproject.toml
	@$(PYTHON) -m venv .build/uv && .build/uv/bin/pip install --quiet uv==0.13.8
	@.build/uv/bin/uv pip compile --quiet --universal --python-version 3.11 --all-extras --generate-hashes \
		--no-strip-extras --no-emit-index-url --no-emit-find-links --no-header pyproject.toml -o requirements.lock

.PHONY: licences
licences: setup ## print the licence of each package in the images, and fail for one that is not allowed
	@$(BIN)/python images/licences.py

.PHONY: coverage
coverage: setup ## measure branch coverage of the pure code
	@$(BIN)/pytest tests/unit --cov --cov-report=term-missing

##@ Tests on real programs

.PHONY: node-e2e
node-e2e: node-binaries ## run the tests on a real kubelet and containerd (root on Linux; a part of e2e): REPEAT=2
	@BERTH_REPEAT=$(or $(REPEAT),2) $(BIN)/pytest tests/node -n 2 --dist loadfile

.PHONY: limits-e2e
limits-e2e: node-binaries ## limit shares by MPS and HAMi-core on a real node, and kill what limits them (root on Linux; stand-ins, no card)
	@BERTH_LIMITS=1 $(BIN)/pytest -v tests/node/test_limits.py tests/node/test_limits_faults.py

.PHONY: defragment-e2e
defragment-e2e: binaries ## move pods on a fragmented cluster so that one of eight cards fits: NODES=200
	@BERTH_NODES=$(or $(NODES),200) $(BIN)/pytest -q -s tests/integration/operator/test_defragmentation.py

.PHONY: page
page: test-binaries ## run the dashboard's page in Chromium, on recorded rows and with the operator on a real control plane
	@BERTH_PAGE=1 $(BIN)/pytest -s tests/page

.PHONY: pictures
pictures: setup ## write the pictures of the dashboard that the documents show
	@$(BIN)/python -m tests.page.pictures docs/pictures

.PHONY: page-views
page-views: setup ## write pictures of all views of the dashboard, in three sizes and both themes: FOLDER=.build/page
	@$(BIN)/python -m tests.page.pictures --all $(or $(FOLDER),.build/page)

.PHONY: chart-e2e
chart-e2e: test-binaries ## install, upgrade, roll back and uninstall the chart by Helm on a real API server
	@TEST_KUBERNETES=1.36 $(BIN)/pytest -s tests/release

.PHONY: test-versions
test-versions: test-binaries ## the same on Kubernetes 1.30, 1.34 and 1.37, too, decisions next to kube-scheduler 1.37, and claims on kubelet 1.34 and 1.37 (builds them once, 20 minutes): VERSIONS=1.37 for API servers and schedulers of some versions only
	@$(BIN)/python -m devcluster build $(patsubst %,kube-apiserver-%,$(filter-out 1.36,$(or $(VERSIONS),1.30 1.34 1.37))) kube-scheduler-1.37 \
		$(if $(VERSIONS),,kube-controller-manager-1.37 kubelet-1.34 kubelet-1.37) > /dev/null
	@TEST_KUBERNETES="$(or $(VERSIONS),1.30 1.34 1.36 1.37)" $(BIN)/pytest -s tests/release \
		tests/integration/scheduler/test_differential.py tests/integration/scheduler/test_reasons.py \
		tests/integration/scheduler/test_own_slices.py \
		tests/integration/scheduler/test_preemption.py::test_the_victims_are_those_of_kube_scheduler_or_fewer
ifndef VERSIONS
	@TEST_NODE_KUBERNETES=1.37 $(BIN)/pytest tests/node/test_own_driver.py tests/node/test_upstream_cases.py tests/node/test_partitions.py \
		tests/node/test_nics_by_claim.py tests/node/test_shares_by_claim.py tests/node/test_claim_pods.py
	@TEST_KUBELET=1.34 $(BIN)/pytest tests/node/test_own_driver.py tests/node/test_upstream_cases.py
endif

.PHONY: install-e2e
install-e2e: node-binaries release ## install a release by kustomize and Helm, as pods of a real node (root on Debian 12)
	@$(BIN)/python -m devcluster build helm > /dev/null
	@BERTH_RELEASE=.build/release $(BIN)/pytest -s tests/node/test_installed.py

.PHONY: kind-e2e
kind-e2e: node-binaries ## run `make trial`, whose steps are those of `make kind`, and look at the result (root on Debian 12)
	@$(BIN)/python -m devcluster build helm > /dev/null
	@BERTH_KIND_STEPS=1 $(BIN)/pytest -q tests/node/test_trial.py

.PHONY: upgrade-e2e
upgrade-e2e: node-binaries release ## upgrade from the version before to a release and go back, under load, with and without Helm: ROUNDS=3 RECORD=
	@$(BIN)/python -m devcluster build helm > /dev/null
	@BERTH_ROUNDS=$(or $(ROUNDS),3) BERTH_REQUIRE_HISTORY=1 BERTH_RELEASE=.build/release \
		BERTH_RECORD=$(if $(RECORD),tests/unit/upgrade/recorded) \
		$(BIN)/pytest -q -s tests/chaos/test_upgrade.py tests/node/test_helm_upgrade.py

.PHONY: attacks
attacks: binaries ## try all attacks by tenants, by stolen tokens and by pods on the network; the last line is JSON
	@$(BIN)/python -m tests.attacks

.PHONY: hostile-e2e
hostile-e2e: binaries ## measure memory and binds under waves of hostile objects on a real control plane: NODES=100 PODS=300 HOSTILE=500
	@NODES=$(or $(NODES),100) PODS=$(or $(PODS),300) HOSTILE=$(or $(HOSTILE),500) $(BIN)/python -m tests.bench.resources.hostile_memory

##@ With other projects' controllers

.PHONY: autoscaler-e2e
autoscaler-e2e: binaries ## let Karpenter add and remove nodes for pods of Berth (builds it once, 6 minutes)
	@$(BIN)/python -m devcluster build karpenter > /dev/null
	@BERTH_AUTOSCALERS=1 $(BIN)/pytest -v tests/autoscalers

.PHONY: kueue-e2e
kueue-e2e: binaries ## admit workloads by Kueue's quotas and compare its counts with what Berth charges (builds it once, 7 minutes)
	@$(BIN)/python -m devcluster build kueue jobset lws trainer > /dev/null
	@BERTH_KUEUE=1 $(BIN)/pytest -v tests/kueue

.PHONY: workloads
workloads: setup ## run workloads of other projects' documents unchanged, with their controllers (builds them once, 10 minutes): ROWS="mpijob triton"
	@$(BIN)/python -m tests.workloads $(ROWS)

.PHONY: bench-teams
bench-teams: binaries ## audit teams that share a fleet by Kueue's quotas: ARGS="--workloads 1000 --nodes 16 --no-check"
	@$(BIN)/python -m devcluster build kueue jobset lws trainer > /dev/null
	@$(BIN)/python -m tests.bench.teams $(ARGS)

##@ On a machine with a GPU

.PHONY: test-gpu
test-gpu: setup ## compare the agent with nvidia-smi and NVIDIA's library, or with amd-smi, on a machine with a GPU
	@$(BIN)/pytest tests/gpu

.PHONY: test-gpu-mig
test-gpu-mig: setup ## make and destroy MIG instances on a card of that machine; it changes the card's MIG mode (root): CARD=GPU-…
	@BERTH_MIG_CARD=$(or $(CARD),$(error CARD is the UUID of a card whose MIG mode may be changed)) $(BIN)/pytest -v tests/gpu/test_mig.py

.PHONY: test-gpu-node
test-gpu-node: node-binaries ## let Berth give that machine's GPU to pods of a real kubelet, which compute on it (root on Linux)
	@$(BIN)/pytest -v tests/node/test_real_card.py

##@ Next to Kubernetes' own code and tests

.PHONY: dra-rows
dra-rows: setup ## compare our allocator of ResourceClaims with Kubernetes' own (builds it twice, then cached): SCENARIOS=10000 SEED=0 JOBS=2
	@$(BIN)/python -m tests.claims --random $(or $(SCENARIOS),10000) --seed $(or $(SEED),0) --jobs $(or $(JOBS),2)

.PHONY: dra-integration
dra-integration: binaries ## run Kubernetes' test/integration/dra with kube-scheduler and with Berth in its place (builds it once): ARGS="--recorded --only GA"
	@$(BIN)/python -m tests.upstream dra $(ARGS)

.PHONY: podgroup-integration
podgroup-integration: binaries ## run Kubernetes' test/integration/scheduler/podgroup in the same way: ARGS="--recorded --only topology-gang"
	@$(BIN)/python -m tests.upstream podgroup $(ARGS)

.PHONY: upstream-e2e
upstream-e2e: node-binaries ## run Kubernetes' e2e tests of scheduling in the same way, on real nodes (root on Linux): ARGS="--recorded --only preemption"
	@$(BIN)/python -m tests.upstream e2e $(ARGS)

.PHONY: upstream-perf
upstream-perf: binaries ## run upstream's scheduler_perf with Berth, kube-scheduler and a bare client, one to two hours (builds it once): ARGS="--runs 1 --only Basic"
	@$(BIN)/python -m tests.bench.speed.upstream $(ARGS)

.PHONY: bench-claims
bench-claims: binaries ## the same for ResourceClaims only: ARGS="--runs 1"
	@$(BIN)/python -m tests.bench.speed.upstream --claims $(ARGS)

##@ Random input

.PHONY: fuzz
fuzz: setup ## fuzz every parser of hostile or damaged input: MINUTES=10 TARGETS="allocation quantity"
	@$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),10) $(TARGETS)

.PHONY: fuzz-coverage
fuzz-coverage: setup ## the same for one parser, guided by coverage (installs atheris): TARGET=allocation MINUTES=10
	@$(BIN)/python -m tests.fuzz --minutes 0 "$(or $(TARGET),allocation)" > /dev/null # refuses an unknown target
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --target .build/atheris --upgrade \
		-r tests/fuzz/requirements-atheris.lock
	@PYTHONPATH=.build/atheris $(BIN)/python -m tests.fuzz.coverage "$(or $(TARGET),allocation)" $(or $(MINUTES),10)

.PHONY: wait-answers
wait-answers: setup ## compare what the operator says would end a wait with what does, in random clusters: CASES=5000 SEED=0
	@CASES=$(or $(CASES),5000) SEED=$(or $(SEED),0) $(BIN)/pytest -q -s tests/component/answers/test_wait_answers.py \
		tests/unit/core/advice/test_claim_answers.py

.PHONY: sequences
sequences: setup ## record what the operator does in random sequences of events, or compare it with a record: COMMAND=compare FILE=.build/sequences.jsonl SEEDS=1000
	@PYTHONHASHSEED=0 $(BIN)/python -m tests.sequences $(or $(COMMAND),compare) $(or $(FILE),.build/sequences.jsonl) \
		--seeds $(or $(SEEDS),1000)

.PHONY: mutants
mutants: setup ## draw mutants of the product, and print which no test finds (hours): SEED=1 COUNT=300
	@$(BIN)/python -m tests.harness.mutants --seed $(or $(SEED),1) --count $(or $(COUNT),300)

##@ Faults, audited

.PHONY: chaos
chaos: setup ## kill, stop, cut, delay and delete everything while pods come and go, audited: SEED=1 FAST=1 FAULTS=200 PODS=3000
	@SEED=$(or $(SEED),1) FAST=$(or $(FAST),0) FAULTS=$(or $(FAULTS),200) PODS=$(or $(PODS),3000) KINDS=$(KINDS) \
		PART=$(PART) $(BIN)/python -m tests.chaos.run

.PHONY: month
month: setup ## live through rollouts, gangs, drains, reboots and an autoscaler, audited over time: SEED=1 EVENTS=320 PODS=1000 KINDS=
	@SEED=$(or $(SEED),1) EVENTS=$(or $(EVENTS),320) PODS=$(or $(PODS),1000) KINDS=$(KINDS) $(BIN)/python -m tests.chaos.month

.PHONY: chaos-broken
chaos-broken: setup ## show that the audits of chaos and of a month find what broken builds do: SEED=1 BUILDS="fence off"
	@SEED=$(or $(SEED),1) BUILDS="$(BUILDS)" $(BIN)/python -m tests.chaos.broken

.PHONY: chaos-devices
chaos-devices: binaries ## renumber, lose and replace cards and kill programs, audited by UUID: BINDS=5000 SEED=13
	@BERTH_BINDS=$(or $(BINDS),5000) BERTH_SEED=$(or $(SEED),13) $(BIN)/pytest -q -s tests/chaos/test_devices.py

.PHONY: driver-chaos
driver-chaos: node-binaries ## give a real node's cards by name, by claim and both while its programs are killed and upgraded, audited (root on Linux): PODS=300 SEED=1
	@BERTH_PODS=$(or $(PODS),300) BERTH_SEED=$(or $(SEED),1) BERTH_REQUIRE_REAL_NODE=1 $(BIN)/pytest -q -s tests/node/test_driver_chaos.py -k owners

.PHONY: partitions-chaos
partitions-chaos: node-binaries ## run pods with MIG instances on demand on a real node while its programs are killed, audited (root on Linux): PODS=300 SEED=1
	@BERTH_PODS=$(or $(PODS),300) BERTH_SEED=$(or $(SEED),1) BERTH_REQUIRE_REAL_NODE=1 $(BIN)/pytest -q -s tests/node/test_partitions_chaos.py

.PHONY: partitions-storm
partitions-storm: binaries ## prepare and release claims for MIG instances, whole cards and shares while the driver's programs are killed, audited: CLAIMS=3000 SEED=1 WORKERS=5 KILLS=6
	@CLAIMS=$(or $(CLAIMS),3000) SEED=$(or $(SEED),1) WORKERS=$(or $(WORKERS),5) KILLS=$(or $(KILLS),6) \
		$(BIN)/python -m tests.chaos.partitions_storm

.PHONY: limits-storm
limits-storm: binaries ## audit shares with and without limits on nodes that change their mode: PODS=2000 SEED=1
	@PODS=$(or $(PODS),2000) SEED=$(or $(SEED),1) $(BIN)/python -m tests.chaos.limits_storm

.PHONY: claims-audit
claims-audit: binaries ## give cards by name and by claim next to kube-scheduler, kill leaders between writes, audited: PODS=500 FAULTS=23 SEED=1
	@BERTH_PODS=$(or $(PODS),500) BERTH_FAULTS=$(or $(FAULTS),23) BERTH_SEED=$(or $(SEED),1) \
		$(BIN)/pytest -q -s tests/chaos/test_claims_audit.py

##@ Benchmarks

.PHONY: bench-core
bench-core: setup ## measure how fast the core decides, without a cluster: NODES=1000 METRICS=0
	@NODES=$(or $(NODES),1000) $(BIN)/python -m tests.bench.decisions.core

.PHONY: bench-quality
bench-quality: setup ## measure how much of all cards gets allocated, against others: ARGS="--seeds 42 --policy ours"
	@$(BIN)/python -m tests.bench.decisions.quality $(ARGS)

.PHONY: bench-living
bench-living: setup ## the same while pods arrive and end, and who waits: QUICK=1 JOBS=4 ARGS="--seeds 1-5 --load 0.9"
	@$(BIN)/python -m tests.bench.decisions.living --jobs $(or $(JOBS),4) $(if $(QUICK),--quick) $(ARGS)

.PHONY: bench-claim-choice
bench-claim-choice: setup ## compare which devices ResourceClaims get, with the first fit: ARGS="--load 0.8 --seeds 3"
	@$(BIN)/python -m tests.bench.decisions.claim_choice $(ARGS)

.PHONY: bench-throughput
bench-throughput: binaries ## race kube-scheduler on one cluster: NODES=1000 PODS=4000 REPEAT=1
	@NODES=$(or $(NODES),1000) PODS=$(or $(PODS),4000) REPEAT=$(or $(REPEAT),1) $(BIN)/python -m tests.bench.speed.throughput

.PHONY: bench-extender
bench-extender: binaries ## race kube-scheduler with the extender, alone, and Berth: NODES=1000 LARGE=5000 PODS=2000 CALLS=400 REPEAT=1
	@NODES=$(or $(NODES),1000) LARGE=$(or $(LARGE),5000) PODS=$(or $(PODS),2000) CALLS=$(or $(CALLS),400) \
		REPEAT=$(or $(REPEAT),1) $(BIN)/python -m tests.bench.speed.extender

.PHONY: bench-wake
bench-wake: setup ## measure how soon what a pod waits for is used: NODES=1000 WAITING=1000 SAMPLES=100 CLASSES=200 EVENTS=50
	@NODES=$(or $(NODES),1000) WAITING=$(or $(WAITING),1000) SAMPLES=$(or $(SAMPLES),100) \
		CLASSES=$(or $(CLASSES),200) EVENTS=$(or $(EVENTS),50) $(BIN)/python -m tests.bench.speed.wake

.PHONY: bench-churn
bench-churn: binaries ## count the cost of waiting pods while nodes change, for kube-scheduler too: WAITING=600 SECONDS=40 JOINING=15
	@NODES=$(or $(NODES),10) WAITING=$(or $(WAITING),600) SECONDS=$(or $(SECONDS),40) JOINING=$(or $(JOINING),15) \
		$(BIN)/python -m tests.bench.speed.churn

.PHONY: bench-restart
bench-restart: binaries ## measure how soon a new operator binds its first pod: NODES=1000 PODS=8000 REPEAT=5
	@NODES=$(or $(NODES),1000) PODS=$(or $(PODS),8000) REPEAT=$(or $(REPEAT),5) $(BIN)/python -m tests.bench.speed.restart

.PHONY: bench-memory
bench-memory: binaries ## measure the operator's memory: NODES=5000 PODS=40000
	@NODES=$(or $(NODES),5000) PODS=$(or $(PODS),40000) $(BIN)/python -m tests.bench.resources.memory

.PHONY: soak
soak: binaries ## measure memory and bind latency while all pods are replaced, and fail if one grows: MINUTES=30 NODES=2000 PODS=15000 TURNOVER=2
	@MINUTES=$(or $(MINUTES),30) NODES=$(or $(NODES),2000) PODS=$(or $(PODS),15000) TURNOVER=$(or $(TURNOVER),2) \
		WARM_UP=$(or $(WARM_UP),$(or $(PODS),15000)) CHART=$(or $(CHART),.build/soak.png) $(BIN)/python -m tests.bench.resources.soak

.PHONY: bench-kubectl
bench-kubectl: binaries ## measure how long the commands of kubectl berth take: NODES=1000 PODS=8000 WAITING=200 REPEAT=5 VISIBILITY=1
	@NODES=$(or $(NODES),1000) PODS=$(or $(PODS),8000) WAITING=$(or $(WAITING),200) REPEAT=$(or $(REPEAT),5) \
		VISIBILITY=$(or $(VISIBILITY),1) $(BIN)/python -m tests.bench.speed.kubectl_berth

.PHONY: bench-watched
bench-watched: binaries ## measure what watches of the visibility API cost the scheduler: NODES=1000 PODS=4000 REPEAT=5 WATCHERS=20
	@NODES=$(or $(NODES),1000) PODS=$(or $(PODS),4000) REPEAT=$(or $(REPEAT),5) WATCHERS=$(or $(WATCHERS),20) \
		$(BIN)/python -m tests.bench.speed.watched

.PHONY: bench-failover
bench-failover: binaries ## measure how soon a standby binds a pod after its leader: NODES=100 PODS=1000 REPEAT=5
	@NODES=$(or $(NODES),100) PODS=$(or $(PODS),1000) REPEAT=$(or $(REPEAT),5) $(BIN)/python -m tests.bench.speed.failover

.PHONY: bench-election
bench-election: binaries ## measure how slow an API server may be for a leader to lead: DELAYS="0.5 1 2 4" SECONDS=60 OVERLOAD=30
	@DELAYS="$(or $(DELAYS),0.5 1 2 4)" SECONDS=$(or $(SECONDS),60) OVERLOAD=$(or $(OVERLOAD),30) $(BIN)/python -m tests.bench.speed.election

.PHONY: bench-agent
bench-agent: binaries ## measure what an agent takes while nothing changes: WARM=30 SECONDS=60 SCRAPED=15
	@WARM=$(or $(WARM),30) SECONDS=$(or $(SECONDS),60) SCRAPED=$(or $(SCRAPED),15) $(BIN)/python -m tests.bench.resources.agent

.PHONY: bench-prepare
bench-prepare: binaries ## measure how soon claims get whole cards from the driver, and lost slices are back: CALLS=800 LOSSES=5
	@CALLS=$(or $(CALLS),800) LOSSES=$(or $(LOSSES),5) $(BIN)/python -m tests.bench.speed.prepare

.PHONY: bench-instances
bench-instances: node-binaries ## measure how soon containers run with a new MIG instance, a whole card and no device, on a real node (root on Linux): STARTS=100
	@BERTH_STARTS=$(or $(STARTS),100) BERTH_REQUIRE_REAL_NODE=1 $(BIN)/pytest -q -s tests/node/test_partitions.py -k measure

.PHONY: bench-hostile
bench-hostile: setup ## measure how long hostile objects hold the loop, and the same load without them: NODES=1000 PODS=3000 HOSTILE=500
	@NODES=$(or $(NODES),1000) PODS=$(or $(PODS),3000) HOSTILE=$(or $(HOSTILE),500) $(BIN)/python -m tests.bench.speed.hostile

.PHONY: claims-hold
claims-hold: binaries ## measure whether claims that take long hold up other pods: NODES=300 DEVICES=10 WAITING=70 SLOW=1 SECONDS=60
	@NODES=$(or $(NODES),300) DEVICES=$(or $(DEVICES),10) WAITING=$(or $(WAITING),70) SLOW=$(or $(SLOW),1) \
		SECONDS=$(or $(SECONDS),60) $(BIN)/python -m tests.bench.speed.claims_hold

.PHONY: flows
flows: setup ## count the functions that a pod, a gang and an explanation run through: ARGS=-v
	@$(BIN)/python -m tests.bench.flows $(ARGS)

##@ Release

.PHONY: krew
krew: setup ## write the archive and the manifest with which krew installs kubectl berth on this platform: KREW=.build/krew URI=
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --target .build/pyinstaller --upgrade \
		-r kubectl/krew/requirements.lock
	@PYTHONPATH=.build/pyinstaller $(BIN)/python kubectl/krew/archive.py $(or $(KREW),.build/krew) $(if $(URI),--uri=$(URI))

.PHONY: krew-e2e
krew-e2e: binaries krew ## install that archive with the real krew (builds it once), and run the plug-in (needs git)
	@$(BIN)/python -m devcluster build krew > /dev/null
	@BERTH_KREW=$(or $(KREW),.build/krew) $(BIN)/pytest -q tests/krew

VERSION ?= $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
# Files of a release have the commit's time, so that the same commit gives the same bytes.
release-parts release-files: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)

.PHONY: release-version
release-version: setup ## check a version, as the verbs of a release do before they build: VERSION=0.1.0
	@$(BIN)/python -m release check "$(VERSION)"

.PHONY: release-parts
release-parts: release-version images krew ## write what of a release depends on this platform, in .build/release-parts: VERSION=0.1.0
	@$(BIN)/python -m release parts "$(VERSION)"

.PHONY: release-files
release-files: setup ## write a release of the parts that are there, in .build/release: VERSION=0.1.0 REGISTRY= ADDRESS= SOURCE= TARGET=
	@$(BIN)/python -m release files "$(VERSION)" $(if $(REGISTRY),--registry=$(REGISTRY)) \
		$(if $(ADDRESS),--address=$(ADDRESS)) $(if $(SOURCE),--source=$(SOURCE)) $(if $(TARGET),--target=$(TARGET))

.PHONY: release
release: release-parts ## write a release for this platform, in .build/release: VERSION=0.1.0 (root on Debian 12)
	@$(MAKE) --no-print-directory release-files

.PHONY: release-check
release-check: binaries release ## run the release's workflow up to its secrets in a clone, compare the release with this one, and try its files
	@$(BIN)/python -m devcluster build helm cosign actionlint > /dev/null
	@BERTH_RELEASE=.build/release $(BIN)/pytest -v tests/release/test_workflows.py
