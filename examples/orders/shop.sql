-- The order service's own tables. The outbox comes from `cdc-relay init`.
CREATE TABLE IF NOT EXISTS orders (
    id          text    PRIMARY KEY,
    version     bigint  NOT NULL, -- counts the events about the order
    total_cents bigint  NOT NULL,
    checked_out boolean NOT NULL DEFAULT false
);
CREATE TABLE IF NOT EXISTS stock (
    item    text   PRIMARY KEY,
    version bigint NOT NULL,      -- counts the events about the item
    pieces  bigint NOT NULL CHECK (pieces >= 0)
);
