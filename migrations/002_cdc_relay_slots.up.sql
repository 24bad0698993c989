-- creates: table public.cdc_relay_slots
--
-- The relay's own record of each replication slot, one row per slot. It is in the
-- database, so it survives a failover even where the slot does not: a slot that
-- has a row here and is gone is never made anew in silence.
CREATE TABLE public.cdc_relay_slots (
    slot             text        PRIMARY KEY,
    database         text        NOT NULL,
    -- Identifier of the cluster that the slot was made on, as in IDENTIFY_SYSTEM.
    system_id        text        NOT NULL,
    -- Timeline of confirmed, at first of consistent_point.
    timeline         bigint      NOT NULL,
    -- Position from which the slot can decode.
    consistent_point pg_lsn      NOT NULL,
    publications     text[]      NOT NULL,
    -- Names one unbroken history of the slot; records carry its hash.
    history_id       text        NOT NULL,
    -- Nothing is streamed while a backfill is running.
    backfill_state   text        NOT NULL DEFAULT 'none' CHECK (backfill_state IN ('none', 'running', 'done')),
    -- The last confirmed position that was noted here: once a minute, and at a
    -- clean stop. The slot itself has the exact one.
    confirmed        pg_lsn,
    confirmed_at     timestamptz,
    clean_stop       boolean     NOT NULL DEFAULT false,
    created_at       timestamptz NOT NULL DEFAULT now()
);
