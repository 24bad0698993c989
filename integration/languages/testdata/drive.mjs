// Runs the page's functions: a command a line, an answer a line.
import { createInterface } from 'node:readline';
import pg from 'pg';
import { place, ship } from './orders.mjs';

const pool = new pg.Pool({ connectionString: process.env.TEST_URL });

async function answer([command, id, number]) {
  try {
    if (command === 'place') {
      await place(pool, id, number, { number });
      return 'placed';
    }
    return (await ship(pool, id, number)) ? 'first' : 'duplicate';
  } catch (err) {
    return `error ${err.code}`;
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${await answer(line.split(' '))}\n`);
}
await pool.end();
