// graphile-worker's side; the same two roles and the same lines as agents/agent.py.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

// The package is where the benchmark installed it, not beside this file.
const require = createRequire(process.env.BENCH_ENVIRONMENT + "/");
const { Logger, makeWorkerUtils, run } = require("graphile-worker");

const URGENT = -10; // smaller runs sooner
const [role, dsn, ...rest] = process.argv.slice(2);
const option = (name) => rest.find((each) => each.startsWith(`--${name}=`))?.split("=")[1];
const concurrency = Number(option("concurrency") ?? 24);

const say = (what) => process.stdout.write(JSON.stringify(what) + "\n");
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const monotonic = () => Number(process.hrtime.bigint()) / 1e9; // the clock that Python calls monotonic
const wall = () => (performance.timeOrigin + performance.now()) / 1000;

// The settings with which the documentation reaches its best figures; the pool is one above the concurrency.
const preset = {
  worker: {
    connectionString: dsn,
    logger: new Logger(() => () => {}),
    concurrentJobs: concurrency,
    maxPoolSize: concurrency + 1,
    localQueue: { size: 500 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
  },
};

const report = { ran: 0, first: null, waits: [] };
function ran() {
  if (report.first === null) report.first = monotonic();
  report.ran += 1;
}

const taskList = {
  noop: async () => ran(),
  nap: async () => {
    await sleep(0.001);
    ran();
  },
  doze: async () => {
    ran();
    await sleep(0.1);
  },
  stamp: async ({ at, due }) => {
    const late = at === undefined ? wall() - due : monotonic() - at;
    ran();
    report.waits.push(late * 1000);
  },
};

async function work(lines) {
  say({ ready: true });
  await lines.next();
  let told = -1;
  setInterval(() => {
    if (report.ran === told) return;
    told = report.ran;
    say({ ran: told, first: report.first, waits: report.waits.splice(0) });
  }, 20);
  const runner = await run({ preset, taskList });
  await runner.promise;
  process.exit(0);
}

class Producer {
  constructor(utils) {
    this.utils = utils;
  }
  static async open() {
    return new Producer(await makeWorkerUtils({ connectionString: dsn, maxPoolSize: 1 }));
  }
  one(task, payload, { delay = 0, urgent = false } = {}) {
    return this.utils.addJob(task, payload, {
      ...(delay ? { runAt: new Date(Date.now() + delay * 1000) } : {}),
      ...(urgent ? { priority: URGENT } : {}),
    });
  }
  async bulk(tasks, payloads, delay = 0) {
    const runAt = delay ? new Date(Date.now() + delay * 1000) : undefined;
    for (let start = 0; start < tasks.length; start += 5000) {
      const some = tasks.slice(start, start + 5000);
      await this.utils.addJobs(
        some.map((identifier, i) => ({ identifier, payload: payloads[start + i], ...(runAt && { runAt }) })),
      );
    }
  }
}

const orders = {
  async one(producer, { amount }) {
    const begun = monotonic();
    for (let n = 0; n < amount; n++) await producer.one("noop", { n });
    return { amount, seconds: monotonic() - begun };
  },
  async bulk(producer, { amount, tasks, delay = 0, at_once = 100_000 }) {
    const begun = monotonic();
    for (let start = 0; start < amount; start += at_once) {
      const size = Math.min(at_once, amount - start);
      const numbers = Array.from({ length: size }, (_, i) => start + i);
      const left = delay ? Math.max(delay - (monotonic() - begun), 0) : 0;
      await producer.bulk(numbers.map((n) => tasks[n % tasks.length]), numbers.map((n) => ({ n })), left);
    }
    return { amount, seconds: monotonic() - begun };
  },
  async stamp(producer, { gaps, urgent = false }) {
    for (const gap of gaps) {
      await sleep(gap);
      await producer.one("stamp", { at: monotonic() }, { urgent });
    }
    return { amount: gaps.length };
  },
  async stream(producer, { seconds }) {
    const begun = monotonic();
    let now = begun;
    let amount = 0;
    for (; now < begun + seconds; now = monotonic(), amount++) await producer.one("stamp", { at: now });
    return { amount, seconds: now - begun };
  },
  async scatter(producer, { delays }) {
    const begun = wall();
    for (const delay of delays) {
      const due = begun + delay;
      await producer.one("stamp", { due }, { delay: due - wall() });
    }
    return { amount: delays.length, seconds: wall() - begun };
  },
  async race(_, { producers, seconds }) {
    const opened = await Promise.all(Array.from({ length: producers }, () => Producer.open()));
    await Promise.all(opened.map((producer) => producer.one("noop", { n: 0 })));
    const begun = monotonic();
    const amounts = await Promise.all(
      opened.map(async (producer) => {
        let amount = 0;
        while (monotonic() < begun + seconds) await producer.one("noop", { n: amount++ });
        return amount;
      }),
    );
    return { amount: amounts.reduce((a, b) => a + b, 0), seconds: monotonic() - begun };
  },
};

async function produce(lines) {
  const producer = await Producer.open();
  say({ ready: true });
  for await (const line of lines) {
    const { do: what, ...order } = JSON.parse(line);
    say(await orders[what](producer, order));
  }
  process.exit(0);
}

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
await (role === "work" ? work(lines) : produce(lines));
