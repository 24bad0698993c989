-- Create publication cdc_relay.
-- Inserts only, so that no primary key is needed and the applications' UPDATE and DELETE are never
-- refused; partitions are published under the name of their root.
-- Needs ownership of the tables and CREATE on the database.
CREATE PUBLICATION "cdc_relay" FOR TABLE "public"."outbox", "Sales"."outbox" WITH (publish = 'insert', publish_via_partition_root = true);

-- Create slot cdc_relay.
-- Everything committed from here on is kept until cdc-relay confirms it. Waits for the transactions
-- that are running.
-- On PostgreSQL 17 and later add a fifth argument, true, for a failover slot.
-- Needs the role attribute REPLICATION: ALTER ROLE … REPLICATION (Amazon RDS: GRANT rds_replication TO …).
SELECT lsn FROM pg_catalog.pg_create_logical_replication_slot('cdc_relay', 'pgoutput', false, false);

-- Record slot cdc_relay in public.cdc_relay_slots.
-- With this record a slot that has vanished is never made anew in silence.
-- Needs INSERT on public.cdc_relay_slots.
INSERT INTO public.cdc_relay_slots
       (slot, database, system_id, timeline, consistent_point, publications, history_id)
SELECT slot_name, database, (SELECT system_identifier::text FROM pg_catalog.pg_control_system()),
       ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int8, confirmed_flush_lsn,
       ARRAY['cdc_relay'], replace(gen_random_uuid()::text, '-', '')
  FROM pg_catalog.pg_replication_slots
 WHERE slot_name = 'cdc_relay';

