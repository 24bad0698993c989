DROP TABLE public.outbox;
