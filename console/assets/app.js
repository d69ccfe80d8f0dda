// Sign-in, navigation, and the state of the live connection.

import { get, post, Problem, token } from "./api.js";
import { auditPage } from "./audit.js";
import { el, fill, say } from "./dom.js";
import { moment } from "./format.js";
import { Live } from "./live.js";
import { modelPage } from "./model.js";
import { rolloutPage, rolloutsPage } from "./rollouts.js";
import { suggestionPage, suggestionsPage } from "./suggestions.js";
import { targetPage } from "./target.js";
import { targetsPage } from "./targets.js";

const PAGES = { targets: [targetsPage, targetPage], suggestions: [suggestionsPage, suggestionPage], rollouts: [rolloutsPage, rolloutPage], audit: [auditPage, auditPage], model: [targetsPage, modelPage] };
const main = document.getElementById("main");
const banner = document.getElementById("banner");
const context = { me: null, connection: { state: "connecting", why: "", retry_at: 0 }, now: () => new Date(Date.now() + skew) };
let skew = 0;  // ms that the daemon's clock is ahead of ours
let page = null;
let seen = null;  // time of the last message from the daemon
let timers = [];
let waiting = null;

const live = new Live(receive, connected);

function route() {
  const [path, query] = location.hash.slice(1).split("?");
  const [name, ...rest] = path.split("/").filter(Boolean);
  let id = rest.join("/");
  try {
    id = decodeURIComponent(id);
  } catch {
    // a broken address: shown as it is, and not found
  }
  return { name: name in PAGES ? name : "targets", id, query: new URLSearchParams(query) };
}

async function start(tried = "") {
  let me;
  try {
    me = await get("/v1/me");
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    if (error.status === 401) return signIn(error, tried || token.get() ? error.message : "");
    return unreachable(error);
  }
  context.me = me;
  skew = Date.parse(me.now) - Date.now();
  drawWho();
  show(!document.activeElement || document.activeElement === document.body);
  live.start();
}

function unreachable(error) {
  leave();
  fill(main, el("h1", { tabindex: "-1" }, "The daemon does not answer"), el("p", error.message), el("p", { class: "muted" }, "The page retries every few seconds."));
  timers.push(setTimeout(() => start(), 3000));
}

/** `refusal`: the daemon's answer to a request without a valid sign-in. */
function signIn(refusal, why = refusal.message) {
  leave();
  live.stop();
  token.clear();
  context.me = null;
  drawWho();
  fill(banner);
  document.title = "Sign in · flettner";
  const field = el("input", { id: "token", name: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true, placeholder: "fl_…", "aria-describedby": "token-why" });
  const problem = el("p", { class: "problem", id: "token-why", role: "alert" }, why);
  const form = el("form", { class: "signin" },
    el("h1", { tabindex: "-1" }, "Sign in"),
    refusal.provider && el("p", el("a", { class: "button primary", id: "provider", href: `/v1/sign-in?to=${encodeURIComponent(location.hash.slice(1, 301) || "/")}` }, `Sign in with ${refusal.provider}`)),
    el("label", { for: "token" }, "Token"), field, problem,
    el("button", { type: "submit", class: "primary" }, "Sign in"),
    el("p", { class: "muted" }, "An admin creates one on the daemon's host: ", el("code", "flettner token new --tokens-file FILE --role operator --name YOU"),
      ", where FILE is tokens_file of [api] in the config (of the service: /etc/flettner/tokens), and lets the running daemon read it: ", el("code", "systemctl reload flettner"), ", or SIGHUP. It is kept in this tab only, until the tab is closed."));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    token.set(field.value.trim());
    await start("tried");
  });
  main.replaceChildren(form);
  field.focus();
}

async function signOut() {
  live.stop();
  if (!token.get()) await post("/v1/sign-out").catch((error) => error);  // ended already, or with the daemon
  token.clear();
  await start();
}

function drawWho() {
  const { me } = context;
  fill(document.getElementById("who"), me && [
    el("span", { class: `live ${context.connection.state}` }, { live: "live", lost: "no connection", polling: "not live" }[context.connection.state] ?? "connecting"),
    el("span", { class: "me" }, me.principal, el("span", { class: "muted" }, ` ${me.role}`)),
    token.get() || me.session_ends ? el("button", { type: "button", class: "quiet", id: "sign-out", onclick: signOut }, "Sign out") : null,
  ]);
}

function leave() {
  timers.forEach((timer) => clearTimeout(timer));
  timers = [];
  clearTimeout(waiting);
  waiting = null;
  page?.close?.();
  page = null;
  main.replaceChildren();
}

function show(focus = true) {
  leave();
  const { name, id, query } = route();
  document.querySelectorAll("nav a").forEach((link) => {
    if (link.getAttribute("href") === `#/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  const root = el("div", { class: `page ${name}` });
  main.append(root);
  const opened = (page = PAGES[name][id ? 1 : 0](context, root, id, query));
  document.title = `${opened.title} · flettner`;
  scrollTo(0, 0);
  ask(opened).then(() => {
    if (page === opened && focus) main.querySelector("h1")?.focus({ preventScroll: true });
  });
  if (opened.slow) ask(opened, "slow");
  if (opened.slow) later(opened, "slow", () => opened.slow_s);
  later(opened, "refresh", () => (opened.idle?.() ? opened.idle_s : opened.every_s));
}

/** Ask again and again, while the page is looked at. */
function later(opened, what, seconds) {
  const next = () => {
    timers.push(setTimeout(async () => {
      if (page !== opened) return;
      if (!document.hidden) await ask(opened, what);
      if (page === opened) next();
    }, seconds() * 1000));
    if (timers.length > 50) timers = timers.slice(-10);
  };
  next();
}

async function ask(opened, what = "refresh") {
  try {
    await opened[what]();
    seen = new Date();
    if (context.connection.state === "lost" && live.state !== "lost") connected({ state: live.state, why: "" });
    if (page === opened) main.querySelector(".page-problem")?.remove();
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    if (page !== opened) return;
    if (error.status === 401) signIn(error);
    else if (error.status === 0) connected({ state: "lost", why: error.message, retry_at: context.connection.retry_at });
    else failed(opened, error);
  }
}

function failed(opened, error) {
  const gone = error.status === 404;
  main.querySelector(".page-problem")?.remove();
  main.firstElementChild.prepend(el("div", { class: "notice bad page-problem", role: "alert" },
    el("p", gone ? `${error.message} It may be older than what the daemon remembers: see the audit.` : error.message)));
  if (gone && !main.querySelector("h1")) main.firstElementChild.prepend(el("h1", { tabindex: "-1" }, "Not found"));
}

function receive(record) {
  seen = new Date();
  const opened = page;
  if (!opened || waiting || opened.concerns?.(record) === false) return;
  waiting = setTimeout(() => {  // several records often come at once
    waiting = null;
    if (page === opened) ask(opened);
  }, 250);
}

function connected(connection) {
  const before = context.connection.state;
  if (connection.state === "out") return signIn(connection.why);  // the refusal
  context.connection = connection;
  drawWho();
  if (connection.state !== "lost") {
    fill(banner);
    if (before === "lost") back();
  } else {
    drawBanner();
  }
  page?.draw();
}

async function back() {
  say("The connection is back.");
  const opened = page;
  if (!opened) return;
  context.me = await get("/v1/me").catch(() => context.me);  // the daemon may have restarted
  drawWho();
  await ask(opened);
  if (opened.slow) await ask(opened, "slow");
}

function drawBanner() {
  if (context.connection.state !== "lost") return;
  fill(banner, el("div", { class: "lost" },
    el("p", el("strong", "Connection lost. "), context.connection.why, seen ? ` The data is from ${moment(seen.toISOString())}.` : "", " Trying again."),
    el("button", { type: "button", onclick: () => live.now() }, "Try now")));
}

window.addEventListener("hashchange", () => context.me && show());
document.addEventListener("visibilitychange", () => !document.hidden && page && ask(page));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
setInterval(() => page?.ticking && page.draw(), 1000);
start();
