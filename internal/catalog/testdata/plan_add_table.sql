-- Add "Sales".outbox to publication cdc_relay.
-- The lock waits for transactions that have written the table: on older minor versions the walsender
-- loses rows of a transaction that is open while its table joins a publication.
-- Needs ownership of the publication and of the tables.
BEGIN; SET LOCAL lock_timeout = '5s'; LOCK TABLE "Sales"."outbox" IN SHARE ROW EXCLUSIVE MODE; ALTER PUBLICATION "cdc_relay" ADD TABLE "Sales"."outbox"; COMMIT;

