-- creates: table public.cdc_relay_dead_letter
--
-- Rows that could not be published, each with all that it takes to publish it later.
-- `cdc-relay dlq` lists, replays and discards them; whoever prefers psql finds the
-- functions and the meaning of the columns below.
CREATE TABLE public.cdc_relay_dead_letter (
    id               bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    slot             text        NOT NULL,
    -- Identifier of the cluster: positions mean something on that one only.
    system_id        text        NOT NULL,
    -- Position of the row in the stream of the slot: LSN of the commit, LSN of the
    -- change, r for a row and m for a logical message, number among equals.
    commit_lsn       pg_lsn      NOT NULL,
    change_lsn       pg_lsn      NOT NULL,
    kind             text        NOT NULL CHECK (kind IN ('m', 'r')),
    index            bigint      NOT NULL,
    state            text        NOT NULL DEFAULT 'dead' CHECK (state IN ('dead', 'replayed', 'discarded')),

    -- The record. Bytes are kept as bytes: keys and headers need not be text.
    source_table     text,
    message_id       bytea,
    topic            text,
    record_key       bytea,
    -- NULL is a null value, or one that was too large to keep (value_kept is false).
    value            bytea,
    -- Length of the value; NULL for a null one.
    value_bytes      bigint,
    value_kept       boolean     NOT NULL,
    header_names     bytea[]     NOT NULL DEFAULT '{}',
    header_values    bytea[]     NOT NULL DEFAULT '{}',
    -- Value of the header type, to choose by.
    type             text,
    record_time      timestamptz,
    commit_time      timestamptz,

    -- Why it could not be published. Never holds a payload.
    reason           text        NOT NULL,
    error            text        NOT NULL,
    attempts         integer     NOT NULL,
    first_failed_at  timestamptz,
    last_failed_at   timestamptz,
    -- An attempt ended without an answer: the record may be on its topic after all.
    may_be_published boolean     NOT NULL,
    -- How many rows the relay had decided on when it wrote this one.
    ordinal          bigint      NOT NULL,
    -- What the logical message says that was written together with the row.
    marker           text        NOT NULL,

    replays          integer     NOT NULL DEFAULT 0,
    -- Where the last replay goes; NULL is topic.
    replay_topic     text,
    -- As marker, of the last replay that was refused.
    replay_marker    text,
    -- LSN of the last logical message about this dead letter.
    changed_lsn      pg_lsn      NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    changed_at       timestamptz NOT NULL DEFAULT now(),
    UNIQUE (slot, system_id, commit_lsn, change_lsn, kind, index)
);

-- For the metrics, which are read every few seconds.
CREATE INDEX cdc_relay_dead_letter_dead ON public.cdc_relay_dead_letter (slot, reason, created_at) WHERE state = 'dead';
-- For the breaker, which looks at the last ones when the relay starts.
CREATE INDEX cdc_relay_dead_letter_ordinal ON public.cdc_relay_dead_letter (slot, system_id, ordinal);

-- Writes one dead letter and returns its marker, or that of the one that is there
-- already; NULL when the walsender does not stream from the slot (any more), so that
-- a relay that was deposed and does not know it gives up on nothing. A relay that has
-- just got the slot locks the same row, FOR UPDATE, before it reads which rows are
-- dead letters: by then all that its predecessor was about to write has been written,
-- or never will be. An advisory lock would do as well, but anybody may hold that.
CREATE OR REPLACE FUNCTION public.cdc_relay_dead_letter_put(
    p_walsender integer, p_slot text, p_system_id text,
    p_commit_lsn pg_lsn, p_change_lsn pg_lsn, p_kind text, p_index bigint,
    p_source_table text, p_message_id bytea, p_topic text, p_record_key bytea,
    p_value bytea, p_value_bytes bigint, p_value_kept boolean,
    p_header_names bytea[], p_header_values bytea[], p_type text,
    p_record_time timestamptz, p_commit_time timestamptz,
    p_reason text, p_error text, p_attempts integer,
    p_first_failed_at timestamptz, p_last_failed_at timestamptz,
    p_may_be_published boolean, p_ordinal bigint, p_marker text
) RETURNS text
LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog AS $$
DECLARE
    written pg_lsn;
    kept    text;
BEGIN
    PERFORM FROM public.cdc_relay_slots s WHERE s.slot = p_slot FOR KEY SHARE;
    IF NOT FOUND OR NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = p_slot AND s.active_pid = p_walsender) THEN
        RETURN NULL;
    END IF;
    -- The relay confirms the row's position once this message has come back to it.
    written := pg_logical_emit_message(true, 'cdc-relay/dead', p_marker);
    INSERT INTO public.cdc_relay_dead_letter (
        slot, system_id, commit_lsn, change_lsn, kind, index,
        source_table, message_id, topic, record_key, value, value_bytes, value_kept,
        header_names, header_values, type, record_time, commit_time,
        reason, error, attempts, first_failed_at, last_failed_at,
        may_be_published, ordinal, marker, changed_lsn
    ) VALUES (
        p_slot, p_system_id, p_commit_lsn, p_change_lsn, p_kind, p_index,
        p_source_table, p_message_id, p_topic, p_record_key, p_value, p_value_bytes, p_value_kept,
        p_header_names, p_header_values, p_type, p_record_time, p_commit_time,
        p_reason, p_error, p_attempts, p_first_failed_at, p_last_failed_at,
        p_may_be_published, p_ordinal, p_marker, written
    ) ON CONFLICT (slot, system_id, commit_lsn, change_lsn, kind, index) DO NOTHING;
    SELECT d.marker INTO STRICT kept
      FROM public.cdc_relay_dead_letter d
     WHERE d.slot = p_slot AND d.system_id = p_system_id AND d.commit_lsn = p_commit_lsn
       AND d.change_lsn = p_change_lsn AND d.kind = p_kind AND d.index = p_index;
    RETURN kept;
END
$$;

-- Makes a replayed dead letter dead again, since the replay with that number was
-- refused, and returns the marker; NULL as above. When it is no longer as the replay
-- left it, nothing changes and the marker is written all the same.
CREATE OR REPLACE FUNCTION public.cdc_relay_dead_letter_put_back(
    p_walsender integer, p_slot text, p_id bigint, p_replays integer,
    p_reason text, p_error text, p_attempts integer, p_last_failed_at timestamptz,
    p_may_be_published boolean, p_marker text
) RETURNS text
LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog AS $$
DECLARE
    written pg_lsn;
    kept    text;
BEGIN
    PERFORM FROM public.cdc_relay_slots s WHERE s.slot = p_slot FOR KEY SHARE;
    IF NOT FOUND OR NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = p_slot AND s.active_pid = p_walsender) THEN
        RETURN NULL;
    END IF;
    SELECT d.replay_marker INTO kept
      FROM public.cdc_relay_dead_letter d
     WHERE d.id = p_id AND d.slot = p_slot AND d.replays = p_replays AND d.state <> 'replayed';
    IF kept IS NOT NULL THEN
        RETURN kept;
    END IF;
    written := pg_logical_emit_message(true, 'cdc-relay/dead', p_marker);
    UPDATE public.cdc_relay_dead_letter d
       SET state = 'dead', reason = p_reason, error = p_error, attempts = d.attempts + p_attempts,
           last_failed_at = coalesce(p_last_failed_at, d.last_failed_at),
           may_be_published = d.may_be_published OR p_may_be_published,
           replay_marker = p_marker, changed_lsn = written, changed_at = now()
     WHERE d.id = p_id AND d.slot = p_slot AND d.replays = p_replays AND d.state = 'replayed';
    RETURN p_marker;
END
$$;

-- Gives dead letters back to the relay, in the order of their ids, and returns those
-- that were dead. In psql: SELECT * FROM public.cdc_relay_dead_letter_replay(ARRAY[1, 2]);
-- A second argument sends them to another topic. The relay is told by a logical
-- message that holds no more than two numbers: it publishes what this table says, and
-- only if the table says the same, so that nothing can be published by a forged one.
CREATE OR REPLACE FUNCTION public.cdc_relay_dead_letter_replay(p_ids bigint[], p_topic text DEFAULT NULL)
RETURNS TABLE (letter_id bigint, message_lsn pg_lsn)
LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog AS $$
DECLARE
    letter record;
BEGIN
    -- Until the end of the transaction: the relay, which has the message as soon as the
    -- commit is in the log, waits for the rows below to be let go. If the commit waited
    -- for a standby, as which synchronous_standby_names = '*' counts the relay, neither
    -- would end.
    PERFORM set_config('synchronous_commit', 'local', true);
    -- The rows are locked before anything is written: a message for a row that
    -- somebody else replays at the same moment would publish it twice.
    FOR letter IN
        SELECT d.id, d.slot, d.replays + 1 AS replays
          FROM public.cdc_relay_dead_letter d
         WHERE d.id = ANY (p_ids) AND d.state = 'dead'
         ORDER BY d.id
           FOR UPDATE
    LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = letter.slot AND s.database = current_database()) THEN
            RAISE EXCEPTION 'dead letter % belongs to slot %, which does not exist', letter.id, letter.slot USING
                ERRCODE = 'undefined_object',
                HINT = 'create the slot (cdc-relay init), or leave the dead letters of that slot out';
        END IF;
        message_lsn := pg_logical_emit_message(true, 'cdc-relay/replay', letter.id || ' ' || letter.replays);
        UPDATE public.cdc_relay_dead_letter d
           SET state = 'replayed', replays = letter.replays, replay_topic = nullif(p_topic, ''), replay_marker = NULL,
               changed_lsn = message_lsn, changed_at = now()
         WHERE d.id = letter.id;
        letter_id := letter.id;
        RETURN NEXT;
    END LOOP;
END
$$;

COMMENT ON TABLE public.cdc_relay_dead_letter IS 'Rows that cdc-relay could not publish; see cdc-relay dlq';
COMMENT ON COLUMN public.cdc_relay_dead_letter.state IS 'dead: waits; replayed: given back to the relay; discarded: given up';
COMMENT ON COLUMN public.cdc_relay_dead_letter.value IS 'the payload; NULL is a null value, or one too large to keep (value_kept)';
COMMENT ON COLUMN public.cdc_relay_dead_letter.may_be_published IS 'an attempt ended without an answer: it may be on its topic';
COMMENT ON FUNCTION public.cdc_relay_dead_letter_put IS 'for cdc-relay itself';
COMMENT ON FUNCTION public.cdc_relay_dead_letter_put_back IS 'for cdc-relay itself';
COMMENT ON FUNCTION public.cdc_relay_dead_letter_replay IS 'gives dead letters back to cdc-relay: ids, and another topic if wanted';
