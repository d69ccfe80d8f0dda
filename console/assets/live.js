// The stream of audit records: server-sent events read with fetch, because EventSource cannot send a token.
// A record only signals a change: after a lost connection the pages fetch their data again, so no record is resent.

import { headers, Problem, problemOf } from "./api.js";

const SILENCE_MS = 16000;  // the daemon sends a heartbeat every 5 s
const LONGEST_MS = 15000;

/** `receive(record)` for each record; `changed({state, why, retry_at})` with state "live", "polling", "lost" or "out". */
export class Live {
  constructor(receive, changed) {
    this.receive = receive;
    this.changed = changed;
    this.tries = 0;
    this.state = "";
  }

  start() {
    this.stop();
    this.stopped = false;
    this.run();
  }

  stop() {
    this.stopped = true;
    clearTimeout(this.timer);
    this.asking?.abort();
  }

  now() {
    if (this.stopped || this.state === "live") return;
    this.tries = 0;
    this.start();
  }

  async run() {
    const asking = (this.asking = new AbortController());
    let why = "The daemon does not answer.";
    let state = "lost";
    try {
      await this.read(asking);
    } catch (error) {
      if (error instanceof Problem) {
        why = error.message;
        state = "polling";  // it answers, but gives no stream: the pages ask again and again
        if (error.status === 401) {
          if (asking === this.asking && !this.stopped) this.tell("out", error);
          return;
        }
      }
    }
    asking.abort();
    if (this.stopped || asking !== this.asking) return;
    const wait = Math.min(LONGEST_MS, 1000 * 2 ** this.tries) * (0.75 + Math.random() / 2);
    this.tries += 1;
    this.tell(state, why, Date.now() + wait);
    this.timer = setTimeout(() => this.run(), wait);
  }

  async read(asking) {
    let silence = setTimeout(() => asking.abort(), SILENCE_MS);
    try {
      const response = await fetch("/v1/events", {
        headers: headers({ Accept: "text/event-stream" }),
        cache: "no-store",
        credentials: "same-origin",
        signal: asking.signal,
      });
      if (!response.ok) throw await problemOf(response);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(silence);
        silence = setTimeout(() => asking.abort(), SILENCE_MS);
        if (this.stopped || asking !== this.asking) return;
        this.tries = 0;
        if (this.state !== "live") this.tell("live");
        text += value;
        const blocks = text.split("\n\n");
        text = blocks.pop();
        blocks.forEach((block) => this.take(block));
      }
    } finally {
      clearTimeout(silence);
    }
  }

  take(block) {
    if (block.startsWith("event: reset")) return this.asking.abort();  // too far behind: start again
    let data = "";
    for (const line of block.split("\n")) {
      if (line.startsWith("data: ")) data += line.slice(6);
    }
    if (data) queueMicrotask(() => this.receive(JSON.parse(data)));
  }

  tell(state, why = "", retry_at = 0) {
    this.state = state;
    queueMicrotask(() => this.changed({ state, why, retry_at }));  // what goes wrong there is not the stream's fault
  }
}
