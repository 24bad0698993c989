DROP TABLE public.cdc_relay_slots;
