# goiser. `make help` lists what there is.

GO      ?= go
BIN     := bin
PKGS    := ./...
PEER    := ./.ci/interop/peer ./.ci/interop/impair ./.ci/bench/peers # ./... leaves them out
TOOL    := $(GO) tool -modfile=cmd/tools/go.mod
FUZZFOR ?= 10s
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS := -X main.version=$(VERSION)

.DEFAULT_GOAL := help
.PHONY: help build demo test mutation conformance interop lint bench bench-peers fuzz deb deb-test clean

help: ## list the targets (this text)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build iserd and iser into bin/, without cgo (20 s cold)
	CGO_ENABLED=0 $(GO) build -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/iserd ./cmd/iser

demo: build ## serve a RAM disk over iSER, log in, write, verify, show the order of events (30 s cold, 5 s warm)
	$(BIN)/iser demo

test: ## all tests with the race detector in random order, then once more without cgo (3 min)
	$(GO) test -race -shuffle=on -timeout 10m $(PKGS) $(PEER)
	CGO_ENABLED=0 $(GO) test -timeout 10m $(PKGS)

mutation: ## the program without one rule after the other: iser lab must notice each time (2 min)
	$(GO) test ./cmd/iser/lab -run 'TestMutations$$' -mutate -v -timeout 15m

conformance: ## libiscsi's whole test suite against iserd, and stgt beside it; needs root on Debian 12 (1 min)
	.ci/conformance/run.sh

interop: ## the real kernel, LIO, stgt and libiscsi in a QEMU VM; needs root on Debian 12 (16 min)
	.ci/interop/run.sh

lint: ## gofumpt, go vet, staticcheck, go fix, go mod tidy: each must find nothing (2 min cold)
	@out=$$($(TOOL) gofumpt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "gofumpt would change:"; echo "$$out"; exit 1; }
	$(GO) vet $(PKGS) $(PEER)
	$(TOOL) staticcheck $(PKGS) $(PEER)
	$(GO) fix -diff $(PKGS)
	$(GO) mod tidy -diff
	@if echo '#include <infiniband/verbs.h>' | $(CC) -E - >/dev/null 2>&1; then \
		echo '$(GO) vet -tags rdma ./iser/rdma/verbs'; $(GO) vet -tags rdma ./iser/rdma/verbs; \
	else echo 'lint: libibverbs-dev is not installed: the verbs provider was not vetted'; fi

bench: ## benchmarks of codec and data path: ns, bytes/s, allocations (2 min)
	$(GO) test -run '^$$' -bench . -benchmem -benchtime 0.5s $(PKGS) | grep -v -e 'no test files' -e '^ok'

# BENCHFLAGS="-out docs" makes docs/BENCH.md anew.
bench-peers: ## iserd beside stgt, gotgt and bare sockets, in turn; needs root on Debian 12 (15 min; BENCHFLAGS=-quick: 2)
	$(GO) build -o $(BIN)/peers ./.ci/bench/peers
	$(BIN)/peers $(BENCHFLAGS)

fuzz: ## each fuzz target for FUZZFOR=10s (8 min)
	FUZZFOR=$(FUZZFOR) .ci/fuzz $(PKGS)

deb: ## a package for Debian and Ubuntu in out/: static programs, unit, manual, completion (3 min cold: it builds nfpm)
	packaging/deb.sh

deb-test: deb ## install, upgrade, remove and purge that package in an overlay, after lintian; needs root on Debian (1 min)
	packaging/try.sh "$$(ls -t out/goiser_*.deb | head -1)"

clean: ## remove what was built
	rm -rf $(BIN) out
