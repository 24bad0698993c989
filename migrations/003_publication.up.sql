-- creates: publication cdc_relay
CREATE PUBLICATION cdc_relay FOR TABLE public.outbox WITH (publish = 'insert', publish_via_partition_root = true);
