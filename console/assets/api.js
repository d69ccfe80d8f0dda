// Requests to the daemon. The token is stored in this tab only and sent only in the Authorization header; without one the
// cookie of a sign-in counts, with a header that no page of another site can send.

const KEY = "flettner.token";
const PATIENCE_MS = 15000;

/** A refusal, or no answer at all (status 0). */
export class Problem extends Error {
  constructor(status, detail, kind = "", retry_s = 0, provider = "") {
    super(detail);
    this.provider = provider;  // by which people can sign in
    this.status = status;
    this.kind = kind;
    this.retry_s = retry_s;
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEY) || "",
  set: (text) => sessionStorage.setItem(KEY, text),
  clear: () => sessionStorage.removeItem(KEY),
};

export function headers(more = {}) {
  const text = token.get();
  return text ? { ...more, Authorization: `Bearer ${text}` } : { ...more, "Flettner-Console": "1" };
}

export async function problemOf(response) {
  let body = {};
  try {
    body = await response.json();
  } catch {
    // not a problem document: the status says it all
  }
  const kind = String(body.type || "").split(":").pop();
  const retry_s = Number(response.headers.get("Retry-After")) || 0;
  return new Problem(response.status, body.detail || `The daemon answered ${response.status}.`, kind, retry_s, response.headers.get("Flettner-Sign-In") || "");
}

async function ask(method, path, { body, key, patience_ms = PATIENCE_MS } = {}) {
  const sent = headers({ Accept: "application/json" });
  if (body !== undefined) sent["Content-Type"] = "application/json";
  if (key) sent["Idempotency-Key"] = key;
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: sent,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      credentials: "same-origin",
      redirect: "error",
      signal: AbortSignal.timeout(patience_ms),
    });
  } catch {
    throw new Problem(0, "The daemon does not answer.");
  }
  if (!response.ok) throw await problemOf(response);
  try {
    return await response.json();
  } catch {
    throw new Problem(0, "The daemon's answer was cut short.");
  }
}

export const get = (path) => ask("GET", path);

/** `key`: the same for each try of one decision, so that it counts once. */
export const post = (path, body, key, patience_ms) => ask("POST", path, { body, key, patience_ms });

export function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export const at = (...parts) => `/v1/${parts.map(encodeURIComponent).join("/")}`;
