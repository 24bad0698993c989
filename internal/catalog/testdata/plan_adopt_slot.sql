-- Record slot s in public.cdc_relay_slots.
-- With this record a slot that has vanished is never made anew in silence.
-- Needs INSERT on public.cdc_relay_slots.
INSERT INTO public.cdc_relay_slots
       (slot, database, system_id, timeline, consistent_point, publications, history_id)
SELECT slot_name, database, '42',
       3, confirmed_flush_lsn,
       ARRAY['p''s'], replace(gen_random_uuid()::text, '-', '')
  FROM pg_catalog.pg_replication_slots
 WHERE slot_name = 's';

