-- What TestCapture runs against a real server while it records the stream.
-- Paragraphs are sent one by one; each is a transaction unless it says otherwise.

CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TABLE outbox (
  id uuid PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text, type text NOT NULL,
  payload jsonb, headers jsonb, created_at timestamptz NOT NULL DEFAULT '2025-05-08 06:13:20.123456+00',
  seq bigint GENERATED ALWAYS AS IDENTITY);
CREATE TABLE kinds (
  a int2, b int8, c numeric, d float4, e float8, f bool, g "char", h varchar(10), i char(5), j date, k timestamp,
  l interval, m bytea, n json, o text[], p mood, q positive, r inet, s regclass, t xml);
CREATE TABLE "Odd ""name" ("Col, 1" text, "ünï" text);
CREATE TABLE large (id int, body text);
ALTER TABLE large ALTER body SET STORAGE EXTERNAL;
CREATE TABLE events (id int, day date) PARTITION BY RANGE (day);
CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM ('2025-01-01') TO ('2025-02-01');
CREATE TABLE events_2 PARTITION OF events FOR VALUES FROM ('2025-02-01') TO ('2025-03-01');
CREATE TABLE unpublished (id int);

CREATE PUBLICATION capture FOR TABLE outbox, kinds, "Odd ""name", large, events WITH (publish_via_partition_root = true)

SELECT pg_create_logical_replication_slot('capture', 'pgoutput')

INSERT INTO outbox VALUES ('11111111-1111-1111-1111-111111111111', 'order', '4711', 'created', '{"n": 1, "ü": null}', NULL)

BEGIN;
INSERT INTO outbox VALUES ('22222222-2222-2222-2222-222222222222', 'order', NULL, 'changed', NULL, '{"a": "b"}');
INSERT INTO outbox VALUES ('33333333-3333-3333-3333-333333333333', '', '', '', '""', '{}');
COMMIT

INSERT INTO kinds VALUES (-1, 9223372036854775807, 1234567890.0123456789, 0.1, 0.1, true, 'x', 'v', 'c', '2025-05-08',
  '2025-05-08 06:13:20.5', '1 year 2 mons 3 days 04:05:06.7', '\x00ff7f', '{ "kept":  1 }', '{a,NULL,"b c"}', 'happy', 7,
  '10.0.0.1/8', 'outbox', '<a/>')

INSERT INTO kinds DEFAULT VALUES

INSERT INTO "Odd ""name" VALUES (E'line\nbreak\ttab', '')

INSERT INTO large SELECT 1, string_agg(md5(i::text), '') FROM generate_series(1, 400) i

INSERT INTO events VALUES (1, '2025-01-15'), (2, '2025-02-15')

INSERT INTO unpublished VALUES (1)

BEGIN;
INSERT INTO events VALUES (3, '2025-01-16');
SAVEPOINT s;
INSERT INTO events VALUES (4, '2025-01-17');
ROLLBACK TO s;
INSERT INTO events VALUES (5, '2025-01-18');
COMMIT

BEGIN;
INSERT INTO events VALUES (6, '2025-01-16');
ROLLBACK

SELECT pg_logical_emit_message(false, 'outside', 'not transactional')

BEGIN;
INSERT INTO events VALUES (7, '2025-01-16');
SELECT pg_logical_emit_message(true, 'inside', 'transactional');
SELECT pg_logical_emit_message(false, 'inside', 'not transactional');
INSERT INTO events VALUES (8, '2025-01-16');
SELECT pg_logical_emit_message(true, '', '');
COMMIT

BEGIN;
SELECT pg_logical_emit_message(false, 'rolled back', 'still sent');
SELECT pg_logical_emit_message(true, 'rolled back', 'not sent');
ROLLBACK

BEGIN;
INSERT INTO outbox VALUES ('44444444-4444-4444-4444-444444444444', 'order', '4711', 'closed', '{}', NULL);
DELETE FROM outbox WHERE id = '44444444-4444-4444-4444-444444444444';
COMMIT

UPDATE outbox SET type = 'renamed' WHERE aggregateid = '4711'

ALTER TABLE outbox ADD correlationid text, DROP headers

INSERT INTO outbox (id, aggregatetype, type, correlationid) VALUES ('55555555-5555-5555-5555-555555555555', 'order', 'created', 'c-1')

ALTER TABLE outbox RENAME TO outbox_old

INSERT INTO outbox_old (id, aggregatetype, type) VALUES ('66666666-6666-6666-6666-666666666666', 'order', 'created')

TRUNCATE events

SELECT pg_replication_origin_create('upstream'), pg_replication_origin_session_setup('upstream')

BEGIN;
SELECT pg_replication_origin_xact_setup('0/ABCDEF', '2025-05-08 06:13:20+00');
INSERT INTO events VALUES (9, '2025-01-16');
COMMIT

SELECT pg_replication_origin_session_reset(), pg_replication_origin_drop('upstream')

SELECT pg_logical_emit_message(true, 'capture', 'end')
