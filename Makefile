# `make demo` and `make test` work on a fresh machine: the virtual environment is made when first needed.
# Set PYTHON to choose the interpreter, PYTEST_ARGS to pass more to pytest (make test PYTEST_ARGS="-k schedule -n 0").

PYTHON ?= python3
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PEERS := .venv-peers
OPEN_CLIP := .venv-open-clip

.DEFAULT_GOAL := help
.PHONY: help screenshots demo evidence test test-open-clip check docs format bench bench-scale bench-workers bench-peers fuzz clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo  ## write demo shards, index them, stream both kinds of epoch
	$(BIN)/python examples/demo.py

evidence: $(VENV)/.demo  ## do the two samplings help? seven minutes on one core, CSV and plots in evidence_out/
	$(BIN)/python examples/evidence_debiased.py evidence_out
	$(BIN)/python examples/evidence_repeats.py evidence_out

# Two workers: the suite waits on child processes and files often enough that a second one pays, even on two cores.
test: $(STAMP)  ## run all tests
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(PYTEST_ARGS)

# An environment of its own: open_clip pins an older webdataset, and torchvision must fit torch.
test-open-clip: $(OPEN_CLIP)/.installed  ## run open_clip's own training, and the pipeline's tests with the webdataset it pins
	$(OPEN_CLIP)/bin/python -m pytest tests/system/test_open_clip.py tests/loading/test_batches.py $(PYTEST_ARGS)

fuzz: $(STAMP)  ## put 200,000 mutated tars and sidecars through builder and readers
	PYTHONPATH=tests $(BIN)/python tests/fuzz/fuzz_tars.py

check: $(STAMP)  ## lint, formatting and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# mkdocs-material says at every start that it is maintained until 2027; builds are for what is wrong in the pages.
docs: $(STAMP)  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open site/index.html"

screenshots: $(STAMP)  ## draw three pages of the documentation at 1280 and 390 pixels into screenshots_out/
	PYTHONPATH=tests $(BIN)/python tests/helpers/browser.py screenshots_out

format: $(STAMP)  ## apply the formatter and the safe fixes
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(STAMP)  ## measure samples/s beside plain webdataset: a few minutes
	$(BIN)/python benchmarks/bench_read.py
	$(BIN)/python benchmarks/bench_loader.py
	$(BIN)/python benchmarks/bench_index.py
	$(BIN)/python benchmarks/plots.py

bench-scale: $(STAMP)  ## measure planning 2 billion samples, resuming, refusals and samplers
	$(BIN)/python benchmarks/bench_plan.py
	$(BIN)/python benchmarks/bench_resume.py
	$(BIN)/python benchmarks/bench_samplers.py
	$(BIN)/python benchmarks/bench_refusals.py
	$(BIN)/python benchmarks/bench_restart.py

bench-workers: $(STAMP)  ## measure the first batch, tensors through workers, and what workers hold in memory
	$(BIN)/python benchmarks/bench_first.py
	$(BIN)/python benchmarks/bench_tensors.py
	$(BIN)/python benchmarks/bench_memory.py
	$(BIN)/python benchmarks/plots.py

bench-peers: $(PEERS)/.installed  ## measure litdata, MosaicML Streaming, wids, Energon, SPDL and torchdata beside
	$(PEERS)/bin/python benchmarks/bench_peers.py

clean:  ## remove the virtual environment and all that was generated
	rm -rf $(VENV) $(OPEN_CLIP) $(PEERS) demo_out evidence_out screenshots_out benchmarks/out build dist site .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# Less than the tests need, and said as it goes: for many it is the first that they see.
$(VENV)/.demo: pyproject.toml constraints.txt
	@echo "setting up $(VENV): some minutes and 1.5 GB or more, most of it torch"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --editable '.[demo]' --constraint constraints.txt
	@touch $@

# The stamp is written last, so that an install that broke off is begun again.
$(STAMP): pyproject.toml constraints.txt
	@echo "setting up $(VENV): some minutes and 1.5 GB or more, most of it torch"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev,demo]' --constraint constraints.txt
	@touch $@

$(OPEN_CLIP)/.installed: pyproject.toml constraints-open-clip.txt
	@echo "setting up $(OPEN_CLIP): some minutes and up to 6 GB, most of it torch"
	$(PYTHON) -m venv $(OPEN_CLIP)
	$(OPEN_CLIP)/bin/python -m pip install --quiet --editable . 'open_clip_torch[training]' hypothesis pillow pytest pytest-timeout \
		--constraint constraints-open-clip.txt
	@touch $@

# Of webdataset 0.2 only its `wids` is used, which later versions do not have; it must not be found before webdataset.
$(PEERS)/.installed: benchmarks/peers.txt pyproject.toml constraints.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet torch --constraint constraints.txt
	$(PEERS)/bin/python -m pip install --quiet --editable . --requirement benchmarks/peers.txt --constraint constraints.txt
	$(PEERS)/bin/python -m pip install --quiet --no-deps --target $(PEERS)/wids webdataset==0.2.111
	@touch $@
