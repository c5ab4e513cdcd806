# Thin calls of the `trainyard` command. `make` alone lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.ONESHELL:
.SHELLFLAGS := -euo pipefail -c

STACK ?= local
RUN := .venv/bin/trainyard
# uv from PATH, else its own small environment (a few seconds).
UV := $(or $(shell command -v uv),.uv/bin/uv)
# Byte code once at installation: torch imports twice as fast.
export UV_COMPILE_BYTECODE := 1
# The computer's own certificates, as pip and go use them: companies have proxies.
export UV_SYSTEM_CERTS := 1

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/' | expand -t 18

up: .venv/installed ## everything: engines, control plane, nodes, stack, one training job seen to its end, one lost node
	@$(RUN) up -s $(STACK) --with-example

down: .venv/installed ## remove what `make up` started
	@$(RUN) down -s $(STACK) --yes

clean: ## remove the state as well (keeps .venv and the built engines)
	@if [ -x $(RUN) ]; then $(RUN) down -s $(STACK) --yes --state; fi

setup: .venv/installed .venv-workflow/installed ## only install: Python environments and engines
	@$(RUN) engines build

test: test-unit test-engines test-builds ## all tests but test-images, test-kueue and test-oldest-torch, on real engines

test-unit: .venv/installed .venv-workflow/installed ## the tests that need no engine
	@.venv/bin/pytest -n 2 -m "not engines and not images and not builds and not kueue"

histories: .venv/installed ## the controller's planner against 10,000 random histories (ten minutes)
	@TRAINYARD_ALL_HISTORIES=1 .venv/bin/pytest -q tests/controller/test_controller_histories.py

test-engines: setup ## the tests on the real engines
	@.venv/bin/pytest -m engines

# What of the launcher meets torch, on the real etcd as well.
OLDEST_TORCH := $(addsuffix .py,$(addprefix tests/training/test_training_,torch_private agent options launcher \
  rendezvous template process_group hooks hooks_state elastic))

test-oldest-torch: setup .venv-oldest/installed ## the launcher on the oldest torch of images/matrix.toml (7 GB more)
	@.venv-oldest/bin/pytest $(OLDEST_TORCH)

test-builds: .venv/installed ## small images, really built: as root, with buildah and debootstrap
	@if [ "$$(id -u)" = 0 ] && command -v buildah >/dev/null && command -v debootstrap >/dev/null; then
	  .venv/bin/pytest -m builds
	else
	  echo "LEFT OUT: building images. As root, after apt-get install buildah debootstrap: make test-builds" >&2
	fi

test-kueue: setup ## the queues of a stack in Kueue itself, built from its Go module (4 minutes the first time)
	@program="$$PWD/build/kueue"
	mkdir -p build
	CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=readonly go build -C infra/local/engines/modules/kueue -trimpath -ldflags "-s -w" \
	  -o "$$program" sigs.k8s.io/kueue/cmd/kueue
	TRAINYARD_KUEUE="$$program" .venv/bin/pytest -m kueue

test-images: setup ## the CPU image in full: built twice, trained in, on the local stack as well (35 GB of disk, an hour)
	@folder=$$(mktemp -d)
	trap 'rm -rf "$$folder"' EXIT
	PYTHONPATH=. .venv/bin/python tests/images/real/archives.py "$$folder"
	TRAINYARD_TRAINING_ARCHIVE="$$folder/training.tar" TRAINYARD_CONTROLLER_ARCHIVE="$$folder/controller.tar" \
	  .venv/bin/pytest -m images

preview: .venv/installed ## what each stack would become, without an account: changes, cost, policies (build/preview)
	@PYTHONPATH=. .venv/bin/python -m ci.preview

lint: .venv/installed ## formatting, lint, types
	@.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	test -z "$$(gofmt -l infra/local/process_runtime)"
	$(MAKE) --no-print-directory docs

docs: .venv/installed ## the documentation as a site (build/site), every page and link checked
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet --strict --site-dir build/site

lock: $(UV) .venv/installed ## write the locked requirements anew
	@compile() { $(UV) pip compile --quiet --python-version 3.11 --no-emit-index-url --generate-hashes \
	    --custom-compile-command "make lock" "$$@" pyproject.toml; }
	compile --group dev -o requirements/dev.txt
	for group in ci docs infra training controller policies; do
	  compile --group $$group -c requirements/dev.txt -o requirements/$$group.txt
	done
	.venv/bin/python -m images.locks $(UV)
	compile --group workflow -o requirements/workflow.txt
	compile --group oldest-torch -c images/locks/torch-2.9.1.txt -o requirements/oldest-torch.txt

bench: setup ## measure the whole path on this computer
	@.venv/bin/python benchmarks/local_stack.py

bench-images: .venv/installed ## measure the stages of the CPU image (root, buildah, debootstrap, 35 GB of disk)
	@PYTHONPATH=. .venv/bin/python benchmarks/image_sizes.py

bench-preview: setup ## measure `make preview`, and where its time goes
	@PYTHONPATH=. .venv/bin/python benchmarks/preview.py

bench-recovery: setup ## measure how long training stands still after a fault, torchrun and Trainyard (40 minutes)
	@PYTHONPATH=.:tests/training .venv/bin/python benchmarks/recovery.py --write-docs

bench-chaos: setup ## 200 random faults on one job, and what must hold nevertheless (half an hour; partitions as root)
	@PYTHONPATH=.:tests/training .venv/bin/python benchmarks/chaos.py

bench-notices: setup ## 20 notices to one node and 20 to all: steps lost, and seconds (6 minutes)
	@PYTHONPATH=.:tests/training .venv/bin/python benchmarks/notices.py --write-docs

bench-controller: setup ## measure the ElasticJob controller with 2,000 and 16,000 workers, kubelets simulated (20 minutes)
	@PYTHONPATH=.:tests/controller .venv/bin/python benchmarks/controller.py --write-docs

bench-checkpoint: .venv/installed ## measure how long training stands still for a checkpoint, beside torch's own (ten minutes, 10 GB of disk)
	@PYTHONPATH=. .venv/bin/python benchmarks/checkpoint.py --write-docs

bench-simulation: setup ## let a real job live through a trace of spot machines, and compare the simulator with it (8 minutes)
	@PYTHONPATH=.:tests/training .venv/bin/python benchmarks/simulation.py --write-docs

bench-work-lost: setup ## kill workers and nodes 20 times each, and count the steps that are made again (ten minutes)
	@PYTHONPATH=.:tests/training .venv/bin/python benchmarks/work_lost.py --write-docs

# The lock keeps two of them, started at once, from building one environment together.
.venv/installed: requirements/dev.txt pyproject.toml
	@exec 9> .venv.lock && flock 9
	if [ .venv/installed -nt requirements/dev.txt ] && [ .venv/installed -nt pyproject.toml ]; then exit 0; fi
	$(if $(filter .uv/bin/uv,$(UV)),$(MAKE) --no-print-directory $(UV))
	begin=$$SECONDS
	echo "… Python environment (.venv; torch is large: 5 GB)" >&2
	[ -x .venv/bin/python ] || $(UV) venv --quiet --allow-existing --python 3.11 .venv
	$(UV) pip sync --quiet --python .venv/bin/python --require-hashes requirements/dev.txt
	$(UV) pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable .
	touch .venv/installed
	echo "✓ Python environment $$((SECONDS - begin)) s" >&2

.venv-oldest/installed: requirements/oldest-torch.txt .venv/installed
	@exec 9> .venv.lock && flock 9
	begin=$$SECONDS
	echo "… Python environment with the oldest torch (.venv-oldest: 7 GB)" >&2
	[ -x .venv-oldest/bin/python ] || $(UV) venv --quiet --allow-existing --python 3.11 .venv-oldest
	$(UV) pip sync --quiet --python .venv-oldest/bin/python --require-hashes requirements/oldest-torch.txt
	$(UV) pip install --quiet --python .venv-oldest/bin/python --no-deps --no-build-isolation --editable .
	touch .venv-oldest/installed
	echo "✓ Python environment with the oldest torch $$((SECONDS - begin)) s" >&2

.venv-workflow/installed: requirements/workflow.txt .venv/installed
	@exec 9> .venv.lock && flock 9
	if [ .venv-workflow/installed -nt requirements/workflow.txt ]; then exit 0; fi
	begin=$$SECONDS
	echo "… Python environment of workflows (.venv-workflow: 160 MB)" >&2
	[ -x .venv-workflow/bin/python ] || $(UV) venv --quiet --allow-existing --python 3.11 .venv-workflow
	$(UV) pip sync --quiet --python .venv-workflow/bin/python --require-hashes requirements/workflow.txt
	touch .venv-workflow/installed
	echo "✓ Python environment of workflows $$((SECONDS - begin)) s" >&2

# Complete or absent, however it is interrupted.
.uv/bin/uv: requirements/uv.txt
	@rm -rf .uv .uv.new
	python3 -m venv .uv.new
	.uv.new/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	mv .uv.new .uv
	touch .uv/bin/uv

.PHONY: help up down clean setup preview docs test test-unit histories test-engines test-builds test-kueue test-images lint lock bench bench-images bench-preview bench-recovery bench-chaos bench-notices bench-controller bench-checkpoint bench-simulation bench-work-lost
