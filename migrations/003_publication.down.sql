-- Refuses to drop a publication that a known slot decodes through: the slot could
-- never pass the gap. To drop it all the same: SET cdc_relay.force = 'on';
DO $$
BEGIN
    IF coalesce(current_setting('cdc_relay.force', true), '') <> 'on' AND to_regclass('public.cdc_relay_slots') IS NOT NULL THEN
        IF EXISTS (SELECT FROM public.cdc_relay_slots WHERE 'cdc_relay' = ANY (publications)) THEN
            RAISE EXCEPTION 'publication cdc_relay is in use by a slot of public.cdc_relay_slots' USING
                ERRCODE = 'object_in_use',
                HINT = 'drop the slot and delete its row, or force it: cdc-relay migrate down --force, or SET cdc_relay.force = ''on''';
        END IF;
    END IF;
    DROP PUBLICATION cdc_relay;
END
$$;
