-- creates: publication cdc_relay
--
-- Inserts only: no primary key is needed, and the applications' UPDATE and DELETE
-- are never refused. Should the table become partitioned, its partitions are
-- published under its own name. The publication must exist before the slot, which
-- cannot decode through a younger one.
CREATE PUBLICATION cdc_relay FOR TABLE public.outbox
    WITH (publish = 'insert', publish_via_partition_root = true);
