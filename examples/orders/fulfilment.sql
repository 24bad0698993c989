-- The consumers' tables, in a database of their own. The inbox, which must be in the same
-- database, comes from `cdc-relay migrate up --only cdc_relay_inbox`.
--
-- No constraint here keeps an order from being shipped twice, and an invoice grows by what
-- is added: it is the inbox alone that makes each effect happen once.
CREATE TABLE IF NOT EXISTS shipments (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id text   NOT NULL
);
CREATE TABLE IF NOT EXISTS invoices (
    order_id text    PRIMARY KEY,
    cents    bigint  NOT NULL,
    sent     boolean NOT NULL DEFAULT false
);
-- Every change of the inventory, for ever: who looks at it later can add it up again.
CREATE TABLE IF NOT EXISTS stock_audit (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    item        text        NOT NULL,
    version     bigint      NOT NULL,
    change      bigint      NOT NULL, -- pieces that came (or went, below 0)
    pieces      bigint      NOT NULL, -- and how many there were then
    order_id    text,                 -- for which order, if it was for one
    recorded_at timestamptz NOT NULL DEFAULT now()
);
CREATE OR REPLACE FUNCTION stock_audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'table stock_audit is append-only';
END
$$;
CREATE OR REPLACE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON stock_audit
    FOR EACH STATEMENT EXECUTE FUNCTION stock_audit_is_append_only();
