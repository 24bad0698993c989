"""Runs the page's functions: a command a line, an answer a line."""
import os
import sys

import psycopg

import orders


def answer(db, command, event_id, number):
    try:
        if command == "place":
            orders.place(db, event_id, number, {"number": number})
            return "placed"
        return "first" if orders.ship(db, event_id, number) else "duplicate"
    except psycopg.Error as err:
        return "error " + (err.sqlstate or str(err))


with psycopg.connect(os.environ["TEST_URL"], autocommit=True) as connection:
    for line in sys.stdin:
        print(answer(connection, *line.split()), flush=True)
