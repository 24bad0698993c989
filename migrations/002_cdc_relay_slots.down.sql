-- Refuses to drop the record of slots that are known. To drop it all the same:
-- SET cdc_relay.force = 'on';
DO $$
BEGIN
    LOCK TABLE public.cdc_relay_slots IN ACCESS EXCLUSIVE MODE;
    IF coalesce(current_setting('cdc_relay.force', true), '') <> 'on' AND EXISTS (SELECT FROM public.cdc_relay_slots) THEN
        RAISE EXCEPTION 'table public.cdc_relay_slots holds rows' USING
            ERRCODE = 'object_in_use',
            HINT = 'drop the slots and delete their rows, or force it: cdc-relay migrate down --force, or SET cdc_relay.force = ''on''';
    END IF;
    DROP TABLE public.cdc_relay_slots;
END
$$;
