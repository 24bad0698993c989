package outbox

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
)

// The format is fixed: the headers are those of the W3C, and the relay and its consumers know no other. So the global
// propagator, which a process may have set to something else, is not asked.
var w3c = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})

// traceOf returns traceparent, tracestate and baggage of the context, those that it has.
func traceOf(ctx context.Context) map[string]string {
	carrier := propagation.MapCarrier{}
	w3c.Inject(ctx, carrier)
	for name, value := range carrier {
		if value == "" || !storable(value) {
			delete(carrier, name)
		}
	}
	return carrier
}
