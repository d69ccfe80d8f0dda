.DEFAULT_GOAL := help
.PHONY: help demo test check advisories docs format lint layers types unit clean
ENGINE ?= sim
RUN := .venv/bin/

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 12

demo:  ## the whole story on this machine: ENGINE=sim (default) or ENGINE=vllm (real vLLM on the CPU)
	@scripts/bootstrap $(ENGINE)
	@$(RUN)trimtab demo --engine $(ENGINE) --json demo.json

test:  ## every test, with real Envoy, Prometheus, Docker and vLLM
	@scripts/bootstrap test
	@scripts/engine with scripts/tests

check: lint layers types test  ## what CI runs

lint:  ## format and lint
	@scripts/bootstrap
	@$(RUN)ruff format --check
	@$(RUN)ruff check

layers:  ## who may import whom
	@scripts/bootstrap
	@$(RUN)lint-imports

types:  ## mypy, strict
	@scripts/bootstrap
	@$(RUN)mypy vllm_facts lint agent policies notifiers docker_engine sensors actuators simulator docker_proxy tests bench

unit:  ## the quick tests, with coverage: no real vLLM, Docker or Prometheus, no whole sites
	@scripts/bootstrap
	@$(RUN)pytest --cov -m 'not (real_vllm or real_docker or real_prometheus or site)'

advisories:  ## what is known to be wrong with the locked dependencies (asks api.osv.dev)
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

clean:  ## forget everything that was installed or measured here
	rm -rf .venv .cache demo.json bench/results
