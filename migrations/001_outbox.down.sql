-- Refuses to drop a table that holds rows. To drop it all the same:
-- SET cdc_relay.force = 'on';
DO $$
BEGIN
    LOCK TABLE public.outbox IN ACCESS EXCLUSIVE MODE;
    IF coalesce(current_setting('cdc_relay.force', true), '') <> 'on' AND EXISTS (SELECT FROM public.outbox) THEN
        RAISE EXCEPTION 'table public.outbox holds rows' USING
            ERRCODE = 'object_in_use',
            HINT = 'delete the rows, or force it: cdc-relay migrate down --force, or SET cdc_relay.force = ''on''';
    END IF;
    DROP TABLE public.outbox;
END
$$;
