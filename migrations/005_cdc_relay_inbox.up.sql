-- creates: table public.cdc_relay_inbox
--
-- The consumer's half: which messages a consumer has settled, what it could not handle,
-- and what waits behind that. It belongs into the database that the consumer's effects
-- go to, which need not be the one of the outbox.
--
-- Any language needs no more than the first function below, called in the transaction
-- of the effect.
CREATE TABLE public.cdc_relay_inbox (
    -- The record's header id.
    message_id text        NOT NULL,
    -- Who handles it: every consumer handles every message once.
    consumer   text        NOT NULL,
    -- What became of it; dead and parked are explained by cdc_relay_inbox_letter.
    outcome    text        NOT NULL DEFAULT 'processed' CHECK (outcome IN ('processed', 'stale', 'parked', 'dead', 'discarded')),
    settled_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (message_id, consumer)
);
-- For pruning, which goes by consumer and time.
CREATE INDEX cdc_relay_inbox_settled ON public.cdc_relay_inbox (consumer, settled_at);

-- Deliveries that failed of messages that are not settled yet. Written outside the
-- transaction that failed.
CREATE TABLE public.cdc_relay_inbox_attempt (
    message_id      text        NOT NULL,
    consumer        text        NOT NULL,
    attempts        integer     NOT NULL,
    -- The last error, without payload; NULL while a delivery that was counted before it
    -- began has not ended.
    error           text,
    first_failed_at timestamptz NOT NULL DEFAULT now(),
    last_failed_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (message_id, consumer)
);

-- Messages that are settled without having been handled: dead ones, and parked ones
-- that wait for another to be handled first.
CREATE TABLE public.cdc_relay_inbox_letter (
    id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer        text        NOT NULL,
    message_id      text        NOT NULL,
    -- dead: waits for somebody's decision. due: the consumer's runner is to handle it.
    -- parked: it is handled by itself once nothing of its lane is in its way.
    -- processed, discarded: the end.
    state           text        NOT NULL CHECK (state IN ('dead', 'parked', 'due', 'processed', 'discarded')),
    -- What has an order: the records of one key of one topic (cdc_inbox_lane). NULL: none.
    lane            bytea,
    -- Later messages of the lane wait while this one is dead, due or parked.
    blocks          boolean     NOT NULL,

    -- The record. Bytes are kept as bytes: keys and headers need not be text.
    topic           text        NOT NULL DEFAULT '',
    partition       integer     NOT NULL DEFAULT -1,
    record_offset   bigint      NOT NULL DEFAULT -1,
    record_key      bytea,
    value           bytea, -- NULL is a tombstone
    header_names    bytea[]     NOT NULL DEFAULT '{}',
    header_values   bytea[]     NOT NULL DEFAULT '{}',
    record_time     timestamptz,
    type            text,       -- value of the header type, to choose by
    version         bigint,     -- value of the header aggregateversion

    -- max_deliveries, permanent, crashed, no_id: why it is dead. behind, gap: why it is parked.
    reason          text        NOT NULL,
    error           text        NOT NULL DEFAULT '', -- without payload
    deliveries      integer     NOT NULL DEFAULT 0,
    first_failed_at timestamptz,
    last_failed_at  timestamptz,
    replays         integer     NOT NULL DEFAULT 0,
    -- The runner's pause after a failure that may pass.
    not_before      timestamptz,
    created_at      timestamptz NOT NULL DEFAULT now(),
    changed_at      timestamptz NOT NULL DEFAULT now(),
    UNIQUE (consumer, message_id)
);
-- For the look at each message's lane, and for the runner.
CREATE INDEX cdc_relay_inbox_letter_open ON public.cdc_relay_inbox_letter (consumer, lane, id)
    WHERE state IN ('dead', 'parked', 'due');

-- How far each lane has been handled, where a consumer checks the sequence.
CREATE TABLE public.cdc_relay_inbox_sequence (
    consumer   text        NOT NULL,
    lane       bytea       NOT NULL,
    version    bigint,     -- of the last message handled
    history    text,       -- and its position: two positions compare within one history
    position   text,
    changed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, lane)
);

-- What consumers say of themselves, every few seconds.
CREATE TABLE public.cdc_relay_inbox_consumer (
    consumer       text        PRIMARY KEY,
    -- When a runner last looked for due messages; those of a consumer that has none stay due.
    runner_seen_at timestamptz,
    retention      interval,   -- NULL: nothing is pruned
    max_deliveries integer,
    order_policy   text,
    breaker_open   boolean     NOT NULL DEFAULT false
);

-- Claims a message for a consumer: true means that this transaction is the first and
-- must produce the effect; false that the message is settled. While another transaction
-- has claimed it and is not done, it waits. It raises no error at READ COMMITTED; at
-- stricter levels a concurrent claim is a serialization failure (40001): run the
-- transaction again. An empty id is an error (22023): it would make one message of all
-- that have none.
CREATE OR REPLACE FUNCTION public.cdc_inbox_claim(p_consumer text, p_message_id text)
RETURNS boolean
LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog AS $$
BEGIN
    IF coalesce(p_message_id, '') = '' THEN
        RAISE EXCEPTION 'claim a message for %: its id is empty', p_consumer USING
            ERRCODE = 'invalid_parameter_value',
            HINT = 'take the id from the record''s header id; a record without one is a dead letter: cdc_inbox_dead_letter';
    END IF;
    INSERT INTO public.cdc_relay_inbox (message_id, consumer) VALUES (p_message_id, p_consumer) ON CONFLICT DO NOTHING;
    RETURN FOUND;
END
$$;

-- Names the lane of a record; NULL for a record without key, which has no order.
CREATE OR REPLACE FUNCTION public.cdc_inbox_lane(p_topic text, p_key bytea)
RETURNS bytea
LANGUAGE sql IMMUTABLE SECURITY INVOKER AS $$
    SELECT pg_catalog.sha256(pg_catalog.convert_to(p_topic, 'UTF8') || pg_catalog.decode('00', 'hex') || p_key)
$$;

-- Reports whether an earlier message of the key is dead, due or parked, so that this one
-- has to wait: leave it unsettled, and its key's later ones with it, until this is false.
CREATE OR REPLACE FUNCTION public.cdc_inbox_waits(p_consumer text, p_topic text, p_key bytea)
RETURNS boolean
LANGUAGE sql STABLE SECURITY INVOKER SET search_path = pg_catalog AS $$
    SELECT EXISTS (SELECT FROM public.cdc_relay_inbox_letter l
                    WHERE l.consumer = p_consumer AND l.lane = public.cdc_inbox_lane(p_topic, p_key)
                      AND l.state IN ('dead', 'parked', 'due') AND l.blocks)
$$;

-- Counts a delivery that failed and returns how many have. Call it outside the
-- transaction that failed. The error must not hold payload.
CREATE OR REPLACE FUNCTION public.cdc_inbox_failed(p_consumer text, p_message_id text, p_error text)
RETURNS integer
LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog AS $$
DECLARE
    n integer;
BEGIN
    INSERT INTO public.cdc_relay_inbox_attempt AS a (message_id, consumer, attempts, error)
    VALUES (p_message_id, p_consumer, 1, left(p_error, 1000))
    ON CONFLICT (message_id, consumer) DO UPDATE
       SET attempts = a.attempts + 1, error = excluded.error, last_failed_at = now()
    RETURNING a.attempts INTO n;
    RETURN n;
END
$$;

-- Returns the last header of a name as text; NULL when there is none, or it is no text.
CREATE OR REPLACE FUNCTION public.cdc_inbox_header(p_names bytea[], p_values bytea[], p_name text)
RETURNS text
LANGUAGE plpgsql STABLE SECURITY INVOKER SET search_path = pg_catalog AS $$
BEGIN
    FOR i IN REVERSE coalesce(array_upper(p_names, 1), 0) .. coalesce(array_lower(p_names, 1), 1) LOOP
        IF p_names[i] = convert_to(p_name, 'UTF8') THEN
            RETURN convert_from(p_values[i], 'UTF8');
        END IF;
    END LOOP;
    RETURN NULL;
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
    RETURN NULL;
END
$$;

-- Settles a message that cannot be handled: it is dead, and `cdc-relay dlq --source inbox`
-- shows it. With p_blocks, later messages of its key wait behind it (cdc_inbox_waits).
-- Type and version are taken from the headers. False: it was settled already, and nothing
-- is changed.
CREATE OR REPLACE FUNCTION public.cdc_inbox_dead_letter(
    p_consumer text, p_message_id text, p_topic text, p_partition integer, p_offset bigint,
    p_key bytea, p_value bytea, p_header_names bytea[], p_header_values bytea[],
    p_reason text, p_error text, p_blocks boolean DEFAULT false, p_record_time timestamptz DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog AS $$
DECLARE
    v_version text := public.cdc_inbox_header(p_header_names, p_header_values, 'aggregateversion');
BEGIN
    INSERT INTO public.cdc_relay_inbox (message_id, consumer, outcome) VALUES (p_message_id, p_consumer, 'dead') ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO public.cdc_relay_inbox_letter (
        consumer, message_id, state, lane, blocks, topic, partition, record_offset, record_key, value,
        header_names, header_values, record_time, type, version, reason, error, deliveries, first_failed_at, last_failed_at
    )
    SELECT p_consumer, p_message_id, 'dead', public.cdc_inbox_lane(p_topic, p_key), p_blocks AND p_key IS NOT NULL,
           p_topic, p_partition, p_offset, p_key, p_value, p_header_names, p_header_values, p_record_time,
           nullif(public.cdc_inbox_header(p_header_names, p_header_values, 'type'), ''),
           CASE WHEN v_version ~ '^[+-]?[0-9]{1,18}$' THEN v_version::bigint END,
           p_reason, left(p_error, 1000), coalesce(a.attempts, 0), a.first_failed_at, a.last_failed_at
      FROM (SELECT) one
      LEFT JOIN public.cdc_relay_inbox_attempt a ON a.message_id = p_message_id AND a.consumer = p_consumer
    -- The letter of a message that was forgotten since may be there still.
    ON CONFLICT (consumer, message_id) DO UPDATE
       SET state = excluded.state, lane = excluded.lane, blocks = excluded.blocks, topic = excluded.topic,
           partition = excluded.partition, record_offset = excluded.record_offset, record_key = excluded.record_key,
           value = excluded.value, header_names = excluded.header_names, header_values = excluded.header_values,
           record_time = excluded.record_time, type = excluded.type, version = excluded.version,
           reason = excluded.reason, error = excluded.error, deliveries = excluded.deliveries, first_failed_at = excluded.first_failed_at,
           last_failed_at = excluded.last_failed_at, not_before = NULL, changed_at = now();
    DELETE FROM public.cdc_relay_inbox_attempt a WHERE a.message_id = p_message_id AND a.consumer = p_consumer;
    RETURN true;
END
$$;

-- Marks dead letters as due, with a fresh count of deliveries, and returns those that
-- were dead. The consumer's runner handles them.
CREATE OR REPLACE FUNCTION public.cdc_inbox_replay(p_ids bigint[])
RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog AS $$
BEGIN
    RETURN QUERY
    WITH marked AS (
        UPDATE public.cdc_relay_inbox_letter l
           SET state = 'due', replays = l.replays + 1, deliveries = 0, not_before = NULL, changed_at = now()
         WHERE l.id = ANY (p_ids) AND l.state = 'dead'
        RETURNING l.id, l.consumer, l.message_id
    ), fresh AS (
        DELETE FROM public.cdc_relay_inbox_attempt a USING marked m
         WHERE a.consumer = m.consumer AND a.message_id = m.message_id
    )
    SELECT m.id FROM marked m ORDER BY m.id;
END
$$;

-- Gives dead letters up and returns those that were dead. What waits behind them is
-- handled as if they had been.
CREATE OR REPLACE FUNCTION public.cdc_inbox_discard(p_ids bigint[])
RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog AS $$
BEGIN
    RETURN QUERY
    WITH given_up AS (
        UPDATE public.cdc_relay_inbox_letter l
           SET state = 'discarded', changed_at = now()
         WHERE l.id = ANY (p_ids) AND l.state = 'dead'
        RETURNING l.id, l.consumer, l.message_id, l.lane, l.version
    ), settled AS (
        UPDATE public.cdc_relay_inbox i SET outcome = 'discarded', settled_at = now()
          FROM given_up g WHERE i.message_id = g.message_id AND i.consumer = g.consumer
    ), passed AS (
        -- Its own transaction was rolled back, so a lane of which it was the first has no row yet.
        INSERT INTO public.cdc_relay_inbox_sequence AS s (consumer, lane, version)
        SELECT g.consumer, g.lane, max(g.version) FROM given_up g
         WHERE g.lane IS NOT NULL AND g.version IS NOT NULL GROUP BY g.consumer, g.lane
        ON CONFLICT (consumer, lane) DO UPDATE SET version = excluded.version, changed_at = now()
         WHERE s.version IS NULL OR s.version < excluded.version
    )
    SELECT g.id FROM given_up g ORDER BY g.id;
END
$$;

-- Lets a message run again the next time that it is delivered; false when the consumer
-- has not settled it. A dead or parked one is left to dlq and parked.
CREATE OR REPLACE FUNCTION public.cdc_inbox_forget(p_consumer text, p_message_id text)
RETURNS boolean
LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog AS $$
BEGIN
    IF EXISTS (SELECT FROM public.cdc_relay_inbox_letter l
                WHERE l.consumer = p_consumer AND l.message_id = p_message_id AND l.state IN ('dead', 'parked', 'due')) THEN
        RAISE EXCEPTION 'message % of consumer % is a dead letter or parked', p_message_id, p_consumer USING
            ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'replay or discard it: cdc-relay dlq --source inbox';
    END IF;
    DELETE FROM public.cdc_relay_inbox_letter l WHERE l.consumer = p_consumer AND l.message_id = p_message_id;
    DELETE FROM public.cdc_relay_inbox_attempt a WHERE a.consumer = p_consumer AND a.message_id = p_message_id;
    DELETE FROM public.cdc_relay_inbox i WHERE i.consumer = p_consumer AND i.message_id = p_message_id;
    RETURN FOUND;
END
$$;

-- Deletes at most p_limit settled messages that are older than p_before and returns how
-- many; repeat until it returns fewer than p_limit. One pruner of a consumer works at a
-- time: NULL means that another one does. What is dead or parked stays.
CREATE OR REPLACE FUNCTION public.cdc_inbox_prune(p_consumer text, p_before timestamptz, p_limit integer DEFAULT 1000)
RETURNS bigint
LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog AS $$
DECLARE
    n bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('cdc_relay_inbox ' || p_consumer, 0)) THEN
        RETURN NULL;
    END IF;
    DELETE FROM public.cdc_relay_inbox i
     WHERE (i.message_id, i.consumer) IN (
        SELECT o.message_id, o.consumer FROM public.cdc_relay_inbox o
         WHERE o.consumer = p_consumer AND o.settled_at < p_before AND o.outcome NOT IN ('dead', 'parked')
         ORDER BY o.settled_at LIMIT p_limit);
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN n;
END
$$;

COMMENT ON TABLE public.cdc_relay_inbox IS 'Messages that consumers have settled; see cdc-relay inbox';
COMMENT ON TABLE public.cdc_relay_inbox_attempt IS 'Failed deliveries of messages that are not settled';
COMMENT ON TABLE public.cdc_relay_inbox_letter IS 'Messages that wait: cdc-relay dlq --source inbox, cdc-relay parked';
COMMENT ON TABLE public.cdc_relay_inbox_sequence IS 'How far consumers have come, by key';
COMMENT ON TABLE public.cdc_relay_inbox_consumer IS 'What consumers say of themselves';
COMMENT ON FUNCTION public.cdc_inbox_claim IS 'true: the first, produce the effect in this transaction; false: settled already';
