-- creates: table public.cdc_relay_slots
CREATE TABLE public.cdc_relay_slots (
    slot             text        PRIMARY KEY,
    database         text        NOT NULL,
    system_id        text        NOT NULL,
    timeline         bigint      NOT NULL,
    consistent_point pg_lsn      NOT NULL,
    publications     text[]      NOT NULL,
    history_id       text        NOT NULL,
    backfill_state   text        NOT NULL DEFAULT 'none' CHECK (backfill_state IN ('none', 'running', 'done')),
    confirmed        pg_lsn,
    confirmed_at     timestamptz,
    clean_stop       boolean     NOT NULL DEFAULT false,
    created_at       timestamptz NOT NULL DEFAULT now()
);
