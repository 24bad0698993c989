-- creates: table public.outbox
--
-- The table that applications insert events into, in the transaction that makes
-- the change. Only inserts are read, from the write-ahead log: a row may be
-- deleted at any time, even in the transaction that inserted it.
--
-- The first five columns are those of Debezium's outbox event router. Every
-- column after payload may be left out of an insert and may be dropped.
CREATE TABLE public.outbox (
    -- Message id; consumers tell repeats by it.
    id               uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    -- Kind of thing the event is about; by default it names the topic.
    aggregatetype    text        NOT NULL,
    -- Which thing; by default the record key, so that its events stay in order.
    -- NULL is for events that need no order.
    aggregateid      text,
    -- What happened.
    type             text        NOT NULL,
    -- The record's value, byte for byte as the column holds it; NULL is a tombstone.
    -- jsonb reorders keys and costs the server most: json, text or bytea may stand
    -- here just as well.
    payload          jsonb,
    -- More record headers, as one JSON object.
    headers          jsonb,
    -- Headers of their own where they are not NULL. A NULL takes one bit of the row,
    -- so they are here from the start rather than added to a busy table later.
    aggregateversion bigint,
    correlationid    text,
    causationid      text,
    schemaversion    text,
    created_at       timestamptz NOT NULL DEFAULT now(),
    -- Rough insertion order, for people and for pruning; records follow the order
    -- of commits instead.
    seq              bigint      GENERATED ALWAYS AS IDENTITY
);
