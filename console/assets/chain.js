// Checks the audit's chain here in the browser: each line's SHA-256 over its canonical JSON (RFC 8785), and the link
// to the line before. It is the daemon's own word that is checked; `flettner audit verify` reads the files themselves.

import { get, Problem } from "./api.js";

const PAGE = 100;
export const GENESIS = "0".repeat(64);

/** As RFC 8785 has it: members sorted by UTF-16 code units, numbers and texts as JavaScript writes them. */
export function canonical(value) {
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  const members = Object.keys(value).sort();
  return `{${members.map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`).join(",")}}`;
}

export async function hashOf(record) {
  const { hash: _, ...rest } = record;
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(canonical(rest)));
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Where the page has no SHA-256 (a plain-HTTP name that is not loopback), nothing can be checked. */
export const canCheck = () => Boolean(globalThis.crypto?.subtle);

/** "" when the record is intact and follows `before`; else what is wrong. `before`: null when unknown. */
export async function fault(record, before) {
  if (!("hash" in record)) return "it is not shown to this token";
  if ((await hashOf(record)) !== record.hash) return "its hash does not match its content";
  if (before && record.seq !== before.seq + 1) return `entry ${before.seq + 1} is missing`;
  if (before && record.prev !== before.hash) return "it does not follow the entry before it";
  if (!before && record.seq === 1 && record.prev !== GENESIS) return "the first entry does not begin the chain";
  return "";
}

/** Every whole record after `after` up to `last`, in order; `seen(record)` may be async. Waits where it must. */
export async function walk(after, last, seen, stopped = () => false) {
  while (after < last && !stopped()) {
    let page;
    try {
      page = await get(`/v1/audit?after=${after}&limit=${Math.min(PAGE, last - after)}`);
    } catch (error) {
      if (!(error instanceof Problem) || error.status !== 429) throw error;
      await new Promise((resolve) => setTimeout(resolve, 1000 * Math.max(1, error.retry_s)));
      continue;
    }
    if (!page.records.length) return;
    for (const record of page.records) {
      if (stopped() || record.seq > last) return;
      await seen(record);
    }
    after = page.next;
  }
}
