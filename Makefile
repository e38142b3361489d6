# Three to learn: make demo, make test, make lint. Each does all of its own set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: demo test lint scenarios scenarios-gpu sweep e2e bench clean

demo: $(READY)
	@$(BIN)/python scripts/demo.py

test: $(READY)
	$(BIN)/python -m pytest -n auto

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/towncrier build --draft --version next > /dev/null

# Programs that really fail, and whether the report says why; minutes.
scenarios: $(READY)
	@$(BIN)/python scenarios/run.py

# The same of programs that need a GPU, and whether the chain of evidence is whole; triton, nvcc and cuda-gdb, minutes.
scenarios-gpu: $(READY)
	@$(BIN)/python scenarios/run.py --gpu
	@$(BIN)/python scenarios/chains/run.py

# Every operator of PyTorch's own database that runs on CPU, recorded, and replayed from its dump; minutes.
sweep: $(READY)
	$(BIN)/python -m tests.sweep
	$(BIN)/python -m tests.replay_sweep

# Real SGLang and vLLM servers on the CPU, recorded and killed; sets both up at first, minutes and 6 GB.
e2e: $(READY)
	$(BIN)/python -m tests.e2e.setup
	$(BIN)/python -m pytest tests/e2e -x

# Cost of recording next to SGLang's and FlashInfer's loggers; fetches both.
bench: $(READY)
	$(BIN)/python bench/overhead.py

clean:
	rm -rf $(VENV) .e2e .peers .mypy_cache .ruff_cache .import_linter_cache build src/firstfault/capture/_crossing.*.so

$(READY): requirements-dev.txt pyproject.toml $(wildcard src/firstfault/capture/crossing/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@
