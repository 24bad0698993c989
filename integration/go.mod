module github.com/cdc-relay/cdc-relay/integration

go 1.26.0

require github.com/cdc-relay/cdc-relay v0.0.0

replace github.com/cdc-relay/cdc-relay => ../
