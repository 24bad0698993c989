-- Refuses to drop messages that wait to be handled. To drop them all the same:
-- SET cdc_relay.force = 'on';
DO $$
BEGIN
    LOCK TABLE public.cdc_relay_inbox_letter IN ACCESS EXCLUSIVE MODE;
    IF coalesce(current_setting('cdc_relay.force', true), '') <> 'on' AND EXISTS (
        SELECT FROM public.cdc_relay_inbox_letter l WHERE l.state IN ('dead', 'parked', 'due')
    ) THEN
        RAISE EXCEPTION 'table public.cdc_relay_inbox_letter holds messages that wait' USING
            ERRCODE = 'object_in_use',
            HINT = 'replay or discard them (cdc-relay dlq --source inbox), or force it: cdc-relay migrate down --force, or SET cdc_relay.force = ''on''';
    END IF;
    DROP FUNCTION public.cdc_inbox_claim, public.cdc_inbox_lane, public.cdc_inbox_waits, public.cdc_inbox_failed,
        public.cdc_inbox_dead_letter, public.cdc_inbox_header, public.cdc_inbox_replay, public.cdc_inbox_discard, public.cdc_inbox_forget, public.cdc_inbox_prune;
    DROP TABLE public.cdc_relay_inbox, public.cdc_relay_inbox_attempt, public.cdc_relay_inbox_letter,
        public.cdc_relay_inbox_sequence, public.cdc_relay_inbox_consumer;
END
$$;
