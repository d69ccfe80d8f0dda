.DEFAULT_GOAL := help
.PHONY: help demo test test-all check advisories docs format lint layers types unit clean
ENGINE ?= sim
RUN := .venv/bin/
export UV_SYSTEM_CERTS ?= true

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

demo:  ## a promoted and a rolled back change on this machine: ENGINE=sim (default) or ENGINE=vllm (real vLLM on the CPU)
	@scripts/bootstrap $(ENGINE)
	@$(RUN)flettner demo --engine $(ENGINE) --json demo.json

test:  ## the main tests, with real Envoy, Prometheus, Docker, Chromium and vLLM: at most ten minutes
	@scripts/bootstrap test
	@scripts/engine with scripts/tests test

test-all:  ## every test with every case: about two hours; before a release
	@scripts/bootstrap test
	@scripts/bootstrap systems
	@scripts/engine with scripts/tests all

check: lint layers types test  ## before a commit is pushed

lint:  ## format and lint
	@scripts/bootstrap
	@$(RUN)ruff format --check
	@$(RUN)ruff check

layers:  ## the rules of imports between packages
	@scripts/bootstrap
	@$(RUN)lint-imports

types:  ## mypy, strict
	@scripts/bootstrap
	@$(RUN)mypy flettner tests bench

unit:  ## tests/unit, with coverage
	@scripts/bootstrap
	@$(RUN)pytest tests/unit --cov

advisories:  ## known vulnerabilities of the locked dependencies (asks api.osv.dev)
	@scripts/bootstrap
	@.cache/uv/bin/uv audit --locked --preview-features audit-command

format:  ## rewrite the code in the house style
	@scripts/bootstrap
	@$(RUN)ruff format
	@$(RUN)ruff check --fix

docs:  ## the documentation as HTML, in .cache/docs; a broken link fails
	@scripts/bootstrap
	@$(RUN)sphinx-build -q -W --keep-going -d .cache/docs-made docs .cache/docs
	@echo .cache/docs/index.html

clean:  ## remove what was installed or measured here
	rm -rf .venv .cache demo.json bench/results
