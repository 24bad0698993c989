# Every target works from a clean clone with Go alone. `make help` lists them.

GOLANGCI_LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
FUZZTIME      ?= 30s
SEED          ?= 1
TESTFLAGS     ?=
MODULES       := $(patsubst %/go.mod,%,$(shell git ls-files -co --exclude-standard go.mod '*/go.mod'))
MODULES       := $(subst go.mod,.,$(MODULES))

# Suites that freeze, kill and promote servers, need three brokers or wait for long: apart, since they take minutes.
FAULTS := $(addprefix ./integration/,$(addsuffix /...,faults failover cluster fencing outage regress resume endtoend deadletters localstack publishtest))
SLOW   := /integration/(faults|failover|cluster|fencing|outage|regress|resume|endtoend|deadletters|localstack|publishtest)(/|$$)

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/cdc-relay, one static binary
	CGO_ENABLED=0 go build -trimpath -o bin/cdc-relay ./cmd/cdc-relay

.PHONY: test
test: ## Unit tests, then integration on the newest Postgres and one broker, all with -race
	go test -race $(TESTFLAGS) ./...
	go test -race $(TESTFLAGS) $$(go list ./integration/... | grep -vE '$(SLOW)') ./cmd/cdc-relay-demo/... ./bench/...

.PHONY: test-oldest
test-oldest: ## What depends on the version of Postgres, on the oldest one
	CDC_RELAY_TEST_POSTGRES=14 go test -race $(TESTFLAGS) ./integration/pipeline/... ./integration/outage/...

.PHONY: test-faults
test-faults: ## The fault lab for two minutes, failover, three brokers, fencing, outages, resuming, dead letters, end to end: a quarter of an hour
	go test -race $(TESTFLAGS) $(FAULTS)

.PHONY: mutants
mutants: ## Break relay and consumer on purpose, one promise at a time; each time a named test must fail
	go run ./integration/mutants

.PHONY: test-containers
test-containers: ## The same rows through servers in containers; installs and starts Docker as root on Debian
	integration/containers/run go test -race $(TESTFLAGS) ./integration/pipeline/...

.PHONY: soak
soak: ## Everything long, by hand, on an idle machine: about two hours; SEED=1 decides the faults
	go test -count=1 -v -timeout 4h ./integration/faults -args \
		-faults.seed=$(SEED) -faults.rate=3000 -faults.duration=20m -faults.kills=200 -faults.poison=50 \
		-faults.replays=10000 -faults.zombies=50
	go test -count=1 -v -timeout 1h -run 'TestLives|TestOrder' ./internal/publish -rapid.checks=20000
	go test -count=1 -v -timeout 1h ./integration/outage -args -broker.freeze=2m -memory.rows=1000000 -noise.segments=60
	go test -count=1 -v -timeout 2h ./integration/regress -args -regress.scale=20
	go test -count=1 -v -timeout 1h ./integration/endtoend -args -endtoend.seed=$(SEED) -endtoend.duration=10m -endtoend.away=1m

.PHONY: lint
lint: ## Run the linters on every module
	@for module in $(MODULES); do echo "lint $$module"; (cd $$module && go run $(GOLANGCI_LINT) run ./...) || exit 1; done

.PHONY: fmt
fmt: ## Format the code of every module
	@for module in $(MODULES); do (cd $$module && go run $(GOLANGCI_LINT) fmt ./...) || exit 1; done

.PHONY: fuzz
fuzz: ## Fuzz each target for FUZZTIME (30s)
	@for package in $$(go list ./...); do \
		for target in $$(go test -list '^Fuzz' $$package | grep '^Fuzz'); do \
			go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$package || exit 1; \
		done; \
	done

.PHONY: generate
generate: ## Write docs/configuration.md and the golden files of the command anew
	go test ./internal/config ./cmd/cdc-relay -update

.PHONY: verify
verify: ## Fail when go.mod, formatting or a generated file is not up to date
	@for module in $(MODULES); do (cd $$module && go mod tidy -diff) || exit 1; done
	@files=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); test -z "$$files" || { echo "gofmt: $$files"; exit 1; }
	go vet ./...
	go test -run 'TestReference|TestScripts' ./internal/config ./cmd/cdc-relay

.PHONY: demo
demo: ## Run the self-contained tour: Postgres, broker, application, relay, consumer
	go run ./cmd/cdc-relay-demo

.PHONY: bench
bench: ## Measure drain and latency beside pg_recvlogical, and the claim of a consumer
	go run ./bench

.PHONY: ci
ci: ## Everything that CI runs
	.ci/run
