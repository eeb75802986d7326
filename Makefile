# caovan: `make run` tries it, `make test` checks it; `make help` lists the rest.
# Everything is made inside the checkout: .venv, .venv-oldest, .engines, .caovan, csrc/build.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PY := .venv/bin/python
OLDEST := packaging/oldest.sh
ENGINE := .engines/current/bin/python
MODELS := .caovan/models
TEST_MODELS := $(MODELS)/dense $(MODELS)/hybrid $(MODELS)/hybrid_copy
# Leave nothing in the home folder.
export PIP_CACHE_DIR ?= $(CURDIR)/.caovan/pip
# A test run starts hundreds of Pythons: none is to compile caovan again.
unexport PYTHONDONTWRITEBYTECODE
PIP := -m pip install -q --disable-pip-version-check

.PHONY: help
help: ## this list
	@grep -hE '^[a-z0-9.-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.PHONY: run
run: ## caovand in the foreground on a tiny model; KIND=vllm or llamacpp chooses
	@packaging/demo/run.sh

.PHONY: engine
engine: .venv/ready ## the engine environment, made on the first call
	@packaging/engine.sh vllm

.PHONY: llamacpp
llamacpp: .venv/ready ## llama.cpp's engine, built here on the first call
	@packaging/engine.sh llamacpp

$(MODELS)/%: packaging/demo/make_model.py | engine
	@mkdir -p $(MODELS)
	@$(ENGINE) $< $@ --kind $*

.venv/ready: pyproject.toml packaging/venv.sh
	@packaging/venv.sh dev

# Python 3.10 from the system or pyenv, else fetched by uv; without one the tests over the oldest
# libraries are skipped.
.PHONY: oldest
oldest: .venv/ready
	@$(OLDEST) --version > /dev/null

.PHONY: compiler
compiler:
	@packaging/prerequisites.sh "build the kernels" compiler

.PHONY: lint
lint: .venv/ready ## ruff and mypy
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

# Before anything is downloaded.
.PHONY: test-system
test-system:
	@packaging/prerequisites.sh "run the tests" python compiler $$(packaging/engine.sh --needs vllm)

.PHONY: test
test: test-system .venv/ready ## all but the long tests
	@packaging/parts.py lint+test-newest,test-needs+test-engine+test-torch+test-oldest

# A machine that cannot have vLLM's Python skips what needs vLLM, with the reason in the table.
WITH_ENGINE := packaging/with-engine.sh

# It downloads while the other lane runs mypy, and then tests that need nothing of this.
.PHONY: test-needs
test-needs: oldest
	@$(WITH_ENGINE) $(MAKE) -s --no-print-directory $(TEST_MODELS)

# Half of this time is waiting for daemons: four at a time, and the lane next to them, keep two
# cores busy.
BRIEF := --hypothesis-profile=brief
.PHONY: test-newest
test-newest: .venv/ready ## the tests that start no real engine
	$(PY) -m pytest -q -n 4 --dist worksteal -m 'not long and not engine' $(BRIEF)

.PHONY: test-engine
test-engine: .venv/ready ## the core of the tests over a real vLLM
	@$(WITH_ENGINE) $(MAKE) -s --no-print-directory test-over-engine

.PHONY: test-over-engine
test-over-engine: $(TEST_MODELS)
	$(PY) -m pytest -m 'engine and not long'

# What touches a library, and two whole daemons. The rest is for Python 3.10, in test-oldest-all.
USES_LIBRARIES := $(addprefix tests/adapters/test_,config_file.py control.py gpu_samples.py log.py \
	model_pull.py notify.py open_socket.py prometheus.py) tests/cli/test_caovanctl.py \
	tests/page/test_server.py tests/gateway/test_server.py tests/gateway/test_hostile.py
WHOLE_DAEMONS := tests/scenarios/test_second_engine.py \
	tests/scenarios/test_supervision.py::test_logs_and_events_are_followed_as_they_come
.PHONY: test-oldest
test-oldest: .venv/ready ## tests that use the libraries, on the oldest supported ones
	@$(OLDEST) -m pytest -q -n 2 --dist worksteal -m 'not long and not engine' \
		$(BRIEF) $(USES_LIBRARIES) $(WHOLE_DAEMONS)

# All other tests that can depend on them: those of packaging and most of the kernels do not.
.PHONY: test-oldest-all
test-oldest-all: .venv/ready
	@$(OLDEST) -m pytest -q -n 3 --dist worksteal -m 'not long and not engine' $(BRIEF) \
		tests/core tests/engines tests/kernels/test_states.py \
		tests/adapters tests/cli tests/daemon tests/lab tests/scenarios \
		$(addprefix --deselect=,$(USES_LIBRARIES) $(WHOLE_DAEMONS))

# The plugin's operators need torch, which only the engine's Python has; pytest is lent to it.
.PHONY: test-torch
test-torch: kernels .caovan/pytest/ready
	$(WITH_ENGINE) env PYTHONPATH=.caovan/pytest $(ENGINE) -m pytest -q -p no:cacheprovider -c /dev/null \
		tests/kernels/test_decode_attention_torch.py \
		--rootdir tests/kernels --confcutdir tests/kernels tests/kernels/test_core_torch.py \
		tests/kernels/test_caches_torch.py tests/kernels/test_lm_head_torch.py tests/kernels/test_paged_torch.py

.caovan/pytest/ready: .venv/ready
	@$(PY) $(PIP) --target .caovan/pytest --upgrade pytest
	@touch $@

# What vLLM 0.21 is made of, and what it imports that the CPU engine lacks: Python files only.
.PHONY: vllm-0.21
vllm-0.21: .caovan/vllm-0.21.0/ready ## vLLM 0.21's sources, which the fixes of its states are tested in

.caovan/vllm-0.21.0/ready: .venv/ready
	@echo "downloading vLLM 0.21.0, some 400 MB"
	@mkdir -p $(@D)/wheels
	@$(PY) -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 \
		--implementation cp --abi cp312 --abi abi3 --abi none \
		--platform manylinux_2_24_x86_64 --platform any -d $(@D)/wheels vllm==0.21.0 gguf==0.19.0
	@$(PY) packaging/sources-of-wheels.py $(@D) $(@D)/wheels/*.whl && rm -r $(@D)/wheels
	@touch $@

# SGLang's parser runs in the CPU engine's Python, which has torch: Python files only.
.PHONY: sglang-0.5.17
sglang-0.5.17: .caovan/sglang-0.5.17/ready ## SGLang 0.5.17's sources, whose parser reads the planned command lines

.caovan/sglang-0.5.17/ready: .venv/ready
	@echo "downloading SGLang 0.5.17, some 22 MB"
	@mkdir -p $(@D)/wheels
	@$(PY) -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 \
		--implementation cp --abi cp312 --platform manylinux_2_34_x86_64 -d $(@D)/wheels sglang==0.5.17
	@$(PY) packaging/sources-of-wheels.py $(@D) $(@D)/wheels/*.whl && rm -r $(@D)/wheels
	@touch $@

# Ray in a Python of its own, for a test that runs it without vLLM.
.PHONY: ray
ray: .caovan/ray/ready ## a Ray for the test of clusters over it

.caovan/ray/ready: .venv/ready
	@echo "downloading Ray 2.60.0, some 80 MB"
	@$(PY) -m venv $(@D) && $(@D)/bin/python $(PIP) ray==2.60.0
	@touch $@

# Another part of the tests may be installing at the same time.
APT_INSTALL := DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	-o DPkg::Lock::Timeout=600

# Debian's Prometheus and promtool, unpacked: installing the package would start a server.
AS_ROOT := -o APT::Sandbox::User=root
.PHONY: prometheus
prometheus: .caovan/prometheus/ready ## a Prometheus for the tests of the metrics

.caovan/prometheus/ready:
	@mkdir -p $(@D)
	@cd $(@D) && { apt-get download -qq $(AS_ROOT) prometheus || { apt-get update -qq && apt-get download -qq $(AS_ROOT) prometheus; }; } \
		|| { echo "cannot fetch Prometheus: apt has no package of that name; the tests of the metrics need it" >&2; exit 1; }
	@dpkg-deb -x $(@D)/prometheus_*.deb $(@D) && rm $(@D)/prometheus_*.deb
	@touch $@

# Playwright and axe-core, in a folder of their own; Chromium is the system's.
.PHONY: browser
browser: .caovan/browser/ready ## a browser for the tests of the page

.caovan/browser/ready: .venv/ready
	@command -v chromium chromium-browser google-chrome > /dev/null \
		|| { apt-get update -qq && $(APT_INSTALL) chromium; } \
		|| { echo "cannot test the page: there is no Chromium, and apt could not install one: apt install chromium" >&2; exit 1; }
	@$(PY) $(PIP) --target $(@D) --upgrade playwright axe-playwright-python
	@touch $@

# nft, for tests of links that a firewall closes; only root can make their network namespaces.
.PHONY: firewall
firewall:
	@test $$(id -u) != 0 || command -v nft > /dev/null \
		|| { apt-get update -qq && $(APT_INSTALL) nftables; } \
		|| { echo "cannot test closed links: there is no nft, and apt could not install one: apt install nftables" >&2; exit 1; }

# The long tests, as selected by LONG. Strangers' attacks are timed, so nothing else may run. Then
# what is left to download comes while llama.cpp compiles, and a real vLLM gets one core, and building
# and installing, a test at a time, the other. The shorter of these lanes goes on with tests that run
# many at a time: they use both cores once the other lane is done.
LONG := long and not exhaustive
.PHONY: test-long
test-long: test-system .venv/ready ## the long tests but for the exhaustive ones: CI runs these after `make test`
	@packaging/parts.py test-needs test-strangers \
		test-fetched+test-real+test-gateway+test-daemons,llamacpp+test-made+test-plugin

.PHONY: test-all
test-all: .venv/ready ## every test there is, with all examples of the properties; an hour and more
	@$(MAKE) -s --no-print-directory test BRIEF=
	@$(MAKE) -s --no-print-directory test-long LONG='long or exhaustive' BRIEF=
	@packaging/parts.py test-oldest-all

.PHONY: test-fetched
test-fetched: engine $(TEST_MODELS) kernels vllm-0.21 sglang-0.5.17 ray prometheus browser firewall oldest

.PHONY: test-strangers
test-strangers: .venv/ready
	$(PY) -m pytest -m '$(LONG)' tests/faults/test_strangers.py

# llama-server loads a tiny model in a moment, and most of `make run` is pip's: neither needs a core
# of its own.
GATEWAY := tests/faults/test_gateway_faults.py
ELSEWHERE := tests/faults/test_llamacpp_faults.py tests/e2e/test_llamacpp.py tests/e2e/test_make_run.py
.PHONY: test-real
test-real: engine $(TEST_MODELS)
	$(PY) -m pytest --durations=12 -m 'engine and ($(LONG))' tests/faults tests/e2e \
		$(addprefix --ignore=,$(GATEWAY) $(ELSEWHERE))

.PHONY: test-gateway
test-gateway: llamacpp
	$(PY) -m pytest -m '$(LONG)' $(GATEWAY)

.PHONY: test-plugin
test-plugin: engine $(TEST_MODELS) .caovan/nvdisasm/ready
	PATH="$(CURDIR)/.caovan/nvdisasm/nvidia/cu13/bin:$$PATH" $(PY) -m pytest --durations=12 -m '$(LONG)' tests/kernels

.caovan/nvdisasm/ready: .venv/ready
	@$(PY) $(PIP) --target $(@D) nvidia-cuda-nvdisasm==13.5.37
	@touch $@

.PHONY: test-made
test-made: .venv/ready
	$(PY) -m pytest --durations=12 -m '$(LONG)' tests/packaging $(ELSEWHERE)

.PHONY: test-daemons
test-daemons: .venv/ready
	$(PY) -m pytest -q -n 4 --dist worksteal -m 'not engine and ($(LONG))' $(BRIEF) \
		--ignore=tests/packaging --ignore=tests/kernels --ignore=tests/faults/test_strangers.py

.PHONY: bench
bench: engine $(MODELS)/hybrid_copy ## what daemon, page, gateway and planning cost, as tables
	$(PY) -m tests.bench.daemon
	$(PY) -m tests.bench.page
	$(PY) -m tests.bench.gateway
	$(PY) -m tests.bench.planner
	$(PY) -m tests.bench.explain

.PHONY: bench-hostile
bench-hostile: .venv/ready ## what others notice while 200,000 fuzzed requests hit the gateway, as a table
	$(PY) -m tests.bench.hostile

# The libraries of clients, in an environment of their own; node and npm are the system's.
.PHONY: bench-clients
bench-clients: llamacpp .caovan/clients/ready ## what client libraries see while all that serves them fails, as a table
	$(PY) -m tests.bench.clients

.caovan/clients/ready: tests/bench/clients/client.mjs
	@echo "downloading client libraries, some 300 MB"
	@python3 -m venv $(@D) && $(@D)/bin/python $(PIP) openai anthropic litellm langchain-openai
	@cp $< $(@D) && cd $(@D) && npm install --silent --no-fund --no-audit openai
	@touch $@

.PHONY: kernels
kernels: compiler ## csrc/build/libcaovan_sm75.so, with nvcc from the system or from PyPI's wheels
	@flock csrc/Makefile $(MAKE) -C csrc

.PHONY: bench-gpu
bench-gpu: ## the kernels on this machine's GPU: correctness, then a table (PYTHON= one with torch)
	@$(MAKE) -C csrc bench-gpu

.PHONY: deb
deb: ## Debian packages in dist/; the tools it needs are installed if you are root
	@packaging/build-deb.sh

.PHONY: config
config: .venv/ready ## etc/caovan.toml from the defaults in the code
	$(PY) -c 'from caovand.core.config.text import render; print(render(), end="")' > etc/caovan.toml

.PHONY: docs
docs: .venv/ready ## the generated parts of packaging/docs from the code
	$(PY) packaging/docs/make.py

.PHONY: clean
clean: ## remove everything that was made here
	rm -rf .venv .venv-* .engines .caovan csrc/build plugin/build plugin/*/lib build dist
	rm -rf *.egg-info plugin/*.egg-info .hypothesis .benchmarks .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -r {} +
