-- creates: table public.outbox
CREATE TABLE public.outbox (
    id               uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    aggregatetype    text        NOT NULL,
    aggregateid      text,
    type             text        NOT NULL,
    payload          jsonb,
    headers          jsonb,
    aggregateversion bigint,
    correlationid    text,
    causationid      text,
    schemaversion    text,
    created_at       timestamptz NOT NULL DEFAULT now(),
    seq              bigint      GENERATED ALWAYS AS IDENTITY
);
