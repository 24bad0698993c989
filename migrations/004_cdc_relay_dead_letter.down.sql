-- Refuses to drop rows that were never published: those that wait, and those whose
-- replay the relay has not got to yet. To drop them all the same:
-- SET cdc_relay.force = 'on';
DO $$
BEGIN
    LOCK TABLE public.cdc_relay_dead_letter IN ACCESS EXCLUSIVE MODE;
    IF coalesce(current_setting('cdc_relay.force', true), '') <> 'on' AND EXISTS (
        SELECT FROM public.cdc_relay_dead_letter d
          LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = d.slot
         WHERE d.state = 'dead' OR d.state = 'replayed' AND d.changed_lsn >= s.confirmed_flush_lsn
    ) THEN
        RAISE EXCEPTION 'table public.cdc_relay_dead_letter holds dead letters' USING
            ERRCODE = 'object_in_use',
            HINT = 'replay or discard them (cdc-relay dlq), or force it: cdc-relay migrate down --force, or SET cdc_relay.force = ''on''';
    END IF;
    DROP FUNCTION public.cdc_relay_dead_letter_put;
    DROP FUNCTION public.cdc_relay_dead_letter_put_back;
    DROP FUNCTION public.cdc_relay_dead_letter_replay;
    DROP TABLE public.cdc_relay_dead_letter;
END
$$;
